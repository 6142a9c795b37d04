# SPDX-License-Identifier: Apache-2.0
"""The list of tokens that kubelet is shown, and the one stream that shows it.

kubelet never opens a stream again that has ended, and rewrites its checkpoint for each message:
so a message goes out only for a change, and the end of the stream is told at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from gpuslice.contract.ledger import Gpu
from gpuslice.contract.tokens import tokens_of_gpu
from protos.deviceplugin.v1beta1 import api_pb2

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""kubelet's limit for one message; about 60 bytes a token."""


class TooManyTokensError(ValueError):
    """The list of tokens is longer than kubelet takes in one message."""


def device_list(gpus: Iterable[Gpu]) -> api_pb2.ListAndWatchResponse:
    """Return all tokens of these GPUs; those of a sick GPU stay in the list as unhealthy.

    No topology: kubelet would split a container's tokens over GPUs by NUMA node.

    Raises:
        TooManyTokensError: where kubelet would end the stream because of the list's length.
    """
    response = api_pb2.ListAndWatchResponse(
        devices=[
            api_pb2.Device(ID=token, health="Healthy" if gpu.healthy else "Unhealthy")
            for gpu in gpus
            for token in tokens_of_gpu(gpu.uuid, gpu.slices)
        ]
    )
    size = response.ByteSize()
    if size > MAX_MESSAGE_BYTES:
        raise TooManyTokensError(
            f"{len(response.devices)} tokens take {size} bytes, and kubelet takes "
            f"{MAX_MESSAGE_BYTES}: lower slicesPerGpu, or raise sliceMemoryMiB"
        )
    return response


class DeviceBoard:
    """The newest list, and the stream that is open on it."""

    def __init__(self, on_streaming: Callable[[], None] = lambda: None) -> None:
        """Start without a list: a stream waits for the first.

        Args:
            on_streaming: told of each change of `streaming`; from any thread, with no lock held.
        """
        self._changed = threading.Condition()
        self._list: api_pb2.ListAndWatchResponse | None = None
        self._gpus: tuple[Gpu, ...] | None = None
        self._stream: Stream | None = None
        self.on_streaming = on_streaming

    @property
    def streaming(self) -> bool:
        """Whether kubelet has a stream open and was shown the list."""
        with self._changed:
            return self._stream is not None and self._stream.shown

    @property
    def ready(self) -> bool:
        """Whether there is a list to show."""
        with self._changed:
            return self._list is not None

    def show(self, gpus: tuple[Gpu, ...]) -> None:
        """Show all tokens of these GPUs, if anything about them has changed.

        Raises:
            TooManyTokensError: see `device_list`.
        """
        with self._changed:
            if gpus == self._gpus:
                return
            self._gpus = gpus
        self.publish(device_list(gpus))

    def publish(self, devices: api_pb2.ListAndWatchResponse) -> None:
        """Show a list, if it differs."""
        with self._changed:
            if devices != self._list:
                self._list = devices
                self._changed.notify_all()

    def open(self) -> Stream:
        """Return a new stream; an older one ends."""
        with self._changed:
            stream = self._stream = Stream(self)
            self._changed.notify_all()
        self.on_streaming()
        return stream

    def retire(self) -> None:
        """End the open stream, if there is one."""
        with self._changed:
            self._stream = None
            self._changed.notify_all()
        self.on_streaming()

    def _end(self, stream: Stream) -> None:
        with self._changed:
            stream.over = True
            ended = self._stream is stream
            if ended:
                self._stream = None
            self._changed.notify_all()
        if ended:
            self.on_streaming()

    def _messages(self, stream: Stream) -> Iterator[api_pb2.ListAndWatchResponse]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_due(stream))
                if stream.over or self._stream is not stream or self._list is None:
                    return
                stream.sent = self._list
            yield stream.sent
            # Asked for the next message, so this one is on the wire.
            with self._changed:
                first, stream.shown = not stream.shown, True
                self._changed.notify_all()
            if first:
                self.on_streaming()

    def _is_due(self, stream: Stream) -> bool:
        """Whether a stream has something to send, or is to end."""
        return stream.over or self._stream is not stream or self._list is not stream.sent


class Stream:
    """One ListAndWatch call."""

    def __init__(self, board: DeviceBoard) -> None:
        """Belong to a board; only `DeviceBoard.open` makes one."""
        self._board = board
        self.sent: api_pb2.ListAndWatchResponse | None = None
        self.shown = False
        """Whether a list has gone out."""
        self.over = False
        """Whether kubelet has ended it."""

    def messages(self) -> Iterator[api_pb2.ListAndWatchResponse]:
        """Yield the list, and again at each change, until a newer stream or an end."""
        return self._board._messages(self)  # noqa: SLF001 - a stream is a part of its board

    def end(self) -> None:
        """Say that kubelet has ended it; a second time is harmless."""
        self._board._end(self)  # noqa: SLF001 - a stream is a part of its board
