# SPDX-License-Identifier: Apache-2.0
"""The device plugin that both kubelets get, and how it answers; an object for each of its lives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import grpc

from protos.deviceplugin.v1beta1 import api_pb2
from tests.cluster.harness.waiting import wait_until
from tests.wire.sim.toyplugin import ToyPlugin

from .steps import DISLIKED_SIZE, EMPTY_SIZE, GPUS, REFUSED_SIZE, TOKENS

Prefers = Callable[[AbstractSet[str], AbstractSet[str], int], AbstractSet[str] | str]

_numbers = itertools.count(1)


def _pack(available: AbstractSet[str], must: AbstractSet[str], size: int) -> AbstractSet[str] | str:
    """What must be, then the fullest GPU that has room for the rest, then the others."""
    if size == DISLIKED_SIZE:
        return "not four"
    free = {
        gpu: sorted(token for token in available - must if token.startswith(f"{gpu}::"))
        for gpu in GPUS
    }
    needed = size - len(must)
    order = sorted(free.values(), key=lambda tokens: (len(tokens) < needed, len(tokens), tokens))
    rest = [token for tokens in order for token in tokens]
    return must | set(rest[:needed])


def _name_too_few(
    available: AbstractSet[str], must: AbstractSet[str], size: int
) -> AbstractSet[str] | str:
    return set(sorted(available)[: max(size - 1, 0)])


def _name_all(
    available: AbstractSet[str], must: AbstractSet[str], size: int
) -> AbstractSet[str] | str:
    return set(available)


PREFERENCES: Final[Mapping[str, Prefers | None]] = {
    "packs": _pack,
    "has no preference": None,
    "names too few": _name_too_few,
    "names all": _name_all,
}
EXACT: Final = "packs"


def _answer(ids: AbstractSet[str]) -> str | None:
    if len(ids) == REFUSED_SIZE:
        return "not five"
    return "" if len(ids) == EMPTY_SIZE else None


class TokenPlugin(ToyPlugin):
    """Serves tokens of two GPUs under a socket name of its own."""

    def __init__(
        self, folder: Path, *, resource: str, preference: str, sick: tuple[str, ...]
    ) -> None:
        super().__init__(
            folder,
            devices(sick),
            resource=resource,
            socket=f"t{next(_numbers)}.sock",
            prefers=PREFERENCES[preference],
            on_allocate=_answer,
        )
        self.serve()

    def fall_sick(self, sick: tuple[str, ...]) -> None:
        """List all tokens again, these as unhealthy."""
        self.publish(devices(sick))

    def register_when_possible(self, timeout_seconds: float = 30) -> None:
        """Register; kubelet may be about to come up."""

        def registered() -> bool:
            try:
                self.register()
            except grpc.RpcError as err:
                if isinstance(err, grpc.Call) and err.code() == grpc.StatusCode.UNAVAILABLE:
                    return False
                raise
            return True

        wait_until(
            "the plugin registers", registered, timeout_seconds=timeout_seconds, pause_seconds=0.02
        )


def devices(sick: tuple[str, ...]) -> list[str | tuple[str, str]]:
    """Return the list of devices in which some are unhealthy."""
    return [(token, "Unhealthy") if token in sick else token for token in TOKENS]


def things_of(response: bytes) -> tuple[str, ...]:
    """Return the variables in an answer to Allocate, as a checkpoint keeps it."""
    return tuple(sorted(api_pb2.ContainerAllocateResponse.FromString(response).envs))
