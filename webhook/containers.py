# SPDX-License-Identifier: Apache-2.0
"""Which container of a pod gets the GPU.

Never simply the first: service meshes put theirs before the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gpuslice.contract import pods

Json = Mapping[str, Any]

_GROUPS: Final[tuple[Literal["initContainers"], Literal["containers"]]] = (
    "initContainers",
    "containers",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One container and where it stands in the pod."""

    group: Literal["containers", "initContainers"]
    index: int
    container: Json

    @property
    def name(self) -> str:
        """Its name, unique in the pod."""
        return str(self.container.get("name") or "")

    @property
    def path(self) -> tuple[str | int, ...]:
        """Where it is; e.g. ``("spec", "containers", 0)``."""
        return ("spec", self.group, self.index)

    @property
    def field(self) -> str:
        """The same as error messages name it; e.g. ``spec.containers["train"]``."""
        return f'spec.{self.group}["{self.name}"]'

    @property
    def runs_along(self) -> bool:
        """Whether it runs as long as the pod: a plain init container ends before the others."""
        return self.group == "containers" or self.container.get("restartPolicy") == "Always"

    def mentions(self, resource: str) -> bool:
        """Whether a resource stands in its limits or requests, be it zero."""
        return any(
            resource in pods.resources(self.container, kind) for kind in ("limits", "requests")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The container that gets the GPU, or why none does."""

    seat: Seat | None = None
    problem: str = ""
    warning: str = ""


def seats(pod: Json) -> tuple[Seat, ...]:
    """Return a pod's init containers, then its regular ones."""
    spec = pods.spec_of(pod)
    return tuple(
        Seat(group=group, index=index, container=container)
        for group in _GROUPS
        for index, container in enumerate(spec.get(group) or ())
    )


def choose(
    all_seats: tuple[Seat, ...],
    *,
    name: str | None,
    asking: tuple[Seat, ...],
    sidecars: frozenset[str],
) -> Choice:
    """Choose the container that gets the GPU.

    The named one; else the only one; else the one that asks already; else the first that is no
    known sidecar, with a warning that names it.

    Args:
        all_seats: the pod's containers, init containers first.
        name: as the user's annotation has it, None without one.
        asking: those that ask for slices or whole GPUs already.
        sidecars: names that never are the user's own container.
    """
    regular = tuple(seat for seat in all_seats if seat.group == "containers")
    known = ", ".join(seat.name for seat in all_seats if seat.runs_along) or "none"
    if name is not None:
        return _named(all_seats, name, known)
    if len(regular) == 1 and not asking:
        return Choice(seat=regular[0])
    if len(asking) == 1:
        return Choice(seat=asking[0])
    own = [seat for seat in regular if seat.name not in sidecars]
    if not own:
        return Choice(problem=f"there is no container to give the GPU to (containers: {known})")
    if len(own) == 1:
        return Choice(seat=own[0])
    return Choice(
        seat=own[0],
        warning=(
            f"container {own[0].name} gets the GPU, the first of {known}: "
            "name another with gpu-fraction-container-name"
        ),
    )


def _named(all_seats: tuple[Seat, ...], name: str, known: str) -> Choice:
    seat = next((each for each in all_seats if each.name == name), None)
    if seat is None:
        return Choice(problem=f"is no container of this pod (containers: {known})")
    if not seat.runs_along:
        return Choice(
            problem=(
                "is an init container that ends before the others start: "
                f"name a regular one, or a sidecar with restartPolicy Always (containers: {known})"
            )
        )
    return Choice(seat=seat)
