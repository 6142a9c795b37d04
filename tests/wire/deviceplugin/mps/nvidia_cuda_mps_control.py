# SPDX-License-Identifier: Apache-2.0
"""Stands in for nvidia-cuda-mps-control: the same arguments, environment, commands and answers.

``-f`` serves in the foreground; without arguments it takes commands on its standard input. What a
test wants it to do wrong stands in the environment.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

PIPES = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
CONTROL = PIPES / "control"
ANSWERS = {
    "get_default_active_thread_percentage": "100.0",
    "get_server_list": "",
}


def serve() -> int:
    if os.environ.get("STAND_IN_REFUSES"):
        return 7
    Path(os.environ["CUDA_MPS_LOG_DIRECTORY"], "control.log").write_text(
        f"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}\n"
    )
    CONTROL.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(CONTROL))
        server.listen()
        while True:
            client, _ = server.accept()
            with client, client.makefile("rw") as stream:
                command = stream.readline().strip()
                stream.write(ANSWERS.get(command, f"Unknown command {command}") + "\n")
                stream.flush()
            if command == "quit":
                CONTROL.unlink()
                return 0


def send() -> int:
    for command in sys.stdin.read().split("\n"):
        if not command:
            continue
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(CONTROL))
            except OSError:
                sys.stderr.write("Cannot find MPS control daemon process\n")
                return 1
            with client.makefile("rw") as stream:
                stream.write(command + "\n")
                stream.flush()
                sys.stdout.write(stream.readline())
    return 0


if __name__ == "__main__":
    ANSWERS["quit"] = ""
    sys.exit(serve() if sys.argv[1:] == ["-f"] else send())
