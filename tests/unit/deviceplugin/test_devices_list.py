# SPDX-License-Identifier: Apache-2.0
"""The list of tokens, and the one stream that shows it."""

from __future__ import annotations

import threading

import pytest

from deviceplugin.devices import DeviceBoard, TooManyTokensError, device_list
from tests.unit.deviceplugin.claims import gpu


def test_every_token_is_listed_without_topology_and_sick_ones_too() -> None:
    """With topology kubelet would split a container's tokens by NUMA node."""
    listed = device_list((gpu(0, slices=2), gpu(1, slices=1, healthy=False))).devices
    assert [(each.ID, each.health) for each in listed] == [
        ("GPU-0::0", "Healthy"),
        ("GPU-0::1", "Healthy"),
        ("GPU-1::0", "Unhealthy"),
    ]
    assert not any(each.HasField("topology") for each in listed)


def test_more_than_kubelet_takes_in_one_message_is_refused_with_the_way_out() -> None:
    """Kubelet would end the stream, and never open another."""
    many = tuple(gpu(index, slices=10_000) for index in range(25))
    with pytest.raises(TooManyTokensError, match="slicesPerGpu"):
        device_list(many)


def test_a_board_streams_only_once_its_list_has_gone_out() -> None:
    told = []
    board = DeviceBoard(lambda: told.append(board.streaming))
    stream = board.open()
    assert not board.streaming
    board.show((gpu(0),))
    messages = stream.messages()
    next(messages)
    assert not board.streaming
    threading.Thread(target=lambda: next(messages, None), daemon=True).start()
    for _ in range(1000):
        if board.streaming:
            break
        threading.Event().wait(0.005)
    assert board.streaming
    stream.end()
    assert not board.streaming
    assert told == [False, True, False]


def test_an_older_stream_ends_and_its_end_does_not_end_the_newer() -> None:
    board = DeviceBoard()
    board.show((gpu(0),))
    old, new = board.open(), board.open()
    assert list(old.messages()) == []
    old.end()
    assert len(next(new.messages()).devices) == 100
