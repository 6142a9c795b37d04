# SPDX-License-Identifier: Apache-2.0
"""A port on the machine's loopback that leads to the API server in its network namespace.

The owner makes the listening socket in the machine's namespace and starts this program in the
cluster's, so that what it dials is there. `relay FD ADDRESS PORT`.
"""

from __future__ import annotations

import asyncio
import socket
import sys


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()  # the other direction may still have something to say
    except OSError:
        writer.close()


async def _serve(listener: socket.socket, address: str, port: int) -> None:
    async def connected(near: asyncio.StreamReader, near_writer: asyncio.StreamWriter) -> None:
        try:
            far, far_writer = await asyncio.open_connection(address, port)
        except OSError:
            near_writer.close()  # the API server is away: refuse as it would
            return
        await asyncio.gather(_copy(near, far_writer), _copy(far, near_writer))
        for writer in (near_writer, far_writer):
            writer.close()

    server = await asyncio.start_server(connected, sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3])))
