# SPDX-License-Identifier: Apache-2.0
"""The user's annotations: their grammar, and what is wrong with a text that isn't in it.

The keys without a prefix are KAI Scheduler's, so that its manifests work unchanged; the values
are a superset of what it takes, less what is surely a mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeVar

from gpuslice.contract import names, quantity
from gpuslice.contract.placement import Policy
from gpuslice.contract.shares import Share

T = TypeVar("T")

MAX_DEVICES: Final = 1024
"""More GPUs than any node has; the share's normal form stays short."""
SHOWN_CHARACTERS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One thing that is wrong with a pod, so that its author can mend it at once."""

    field: str
    """A path; e.g. ``metadata.annotations["gpu-fraction"]``."""
    value: str
    """As given; shown quoted and cut."""
    problem: str
    """E.g. ``is not a plain decimal number``."""
    allowed: str
    """E.g. ``above 0 and at most 1``."""
    example: str
    """Text to write instead; e.g. ``gpu-fraction: "0.5"``."""

    def __str__(self) -> str:
        return (
            f"{self.field}: {shown(self.value)} {self.problem}; "
            f"allowed: {self.allowed}; example: {self.example}"
        )


class RequestError(ValueError):
    """All that is wrong with a pod's annotations, at once."""

    def __init__(self, errors: tuple[FieldError, ...]) -> None:
        """Keep the errors, and say them in one line."""
        super().__init__("; ".join(map(str, errors)))
        self.errors = errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the cluster can give, as far as it is known."""

    smallest_fraction: Fraction = Fraction(1, 100)
    min_share_mib: int = 128
    largest_gpu_mib: int | None = None
    """Of all known GPUs; None while none is known."""
    most_gpus: int | None = None
    """Of any known node; None while none is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a pod's annotations ask for."""

    share: Share
    container_name: str | None = None
    """The container that is to get the GPU; None leaves the choice to admission."""
    placement: Policy | None = None
    """None means the cluster's setting."""


def shown(value: str) -> str:
    """Return a user's text quoted, escaped and cut, fit for a one-line message."""
    cut = value if len(value) <= SHOWN_CHARACTERS else value[:SHOWN_CHARACTERS] + "..."
    escaped = cut.encode("unicode_escape").decode("ascii").replace('"', '\\"')
    return f'"{escaped}"'


def annotation_field(key: str) -> str:
    """Return the path of an annotation as error messages name it."""
    return f'metadata.annotations["{key}"]'


def read_request(annotations: Mapping[str, str], bounds: Bounds) -> Request | None:
    """Return what a pod's annotations ask for, None where they ask for no share.

    Raises:
        RequestError: with everything that is wrong, not only the first.
    """
    reader = _Reader(annotations)
    fraction = reader.read(names.FRACTION, lambda text: _fraction(text, bounds))
    memory_mib = reader.read(names.MEMORY, lambda text: _memory(text, bounds))
    devices = reader.read(names.DEVICES, lambda text: _devices(text, bounds))
    container_name = reader.read(names.CONTAINER, _container_name)
    placement = reader.read_exact(names.PLACEMENT, _placement)
    reader.read_exact(names.MPS, _mps)
    asks = reader.has(names.FRACTION) or reader.has(names.MEMORY)
    if reader.has(names.FRACTION) and reader.has(names.MEMORY):
        reader.refuse(
            names.MEMORY,
            f"stands beside {names.FRACTION}",
            "either a fraction or an amount of memory",
            f'{names.FRACTION}: "0.5"',
        )
    for key in (names.DEVICES, names.MPS):
        if reader.has(key) and not asks:
            reader.refuse(
                key,
                "stands without a share",
                f"beside {names.FRACTION} or {names.MEMORY}",
                f'{names.FRACTION}: "0.5"',
            )
    if reader.errors:
        raise RequestError(tuple(reader.errors))
    if not asks:
        return None
    share = Share(fraction=fraction, memory_mib=memory_mib, devices=devices or 1)
    return Request(share=share, container_name=container_name, placement=placement)


class _RefusedError(ValueError):
    def __init__(self, problem: str, allowed: str, example: str) -> None:
        super().__init__(problem)
        self.said = (problem, allowed, example)


class _Reader:
    """Reads keys with and without our prefix, and gathers what is wrong."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations
        self.errors: list[FieldError] = []

    def _key(self, key: str) -> str:
        ours = names.prefixed(key)
        return ours if ours in self._annotations else key

    def has(self, key: str) -> bool:
        return self._key(key) in self._annotations

    def refuse(self, key: str, problem: str, allowed: str, example: str) -> None:
        key = self._key(key)
        self.errors.append(
            FieldError(
                field=annotation_field(key),
                value=self._annotations[key],
                problem=problem,
                allowed=allowed,
                example=example,
            )
        )

    def read(self, key: str, parse: Callable[[str], T]) -> T | None:
        ours, plain = self._annotations.get(names.prefixed(key)), self._annotations.get(key)
        if ours is not None and plain is not None and ours != plain:
            self.refuse(
                key,
                f"differs from {key}: {shown(plain)}",
                "one of the two keys, or both with one value",
                f"remove {key}",
            )
        return self.read_exact(self._key(key), parse)

    def read_exact(self, key: str, parse: Callable[[str], T]) -> T | None:
        text = self._annotations.get(key)
        if text is None:
            return None
        try:
            return parse(text)
        except _RefusedError as refused:
            self.refuse(key, *refused.said)
            return None


def _fraction(text: str, bounds: Bounds) -> Fraction:
    smallest = bounds.smallest_fraction
    least = quantity.format_decimal(Fraction(-(-smallest * 10**6 // 1), 10**6))
    allowed = f"a decimal from {least} to 1, or a percentage such as 50%"
    example = f'{names.FRACTION}: "0.5"'
    try:
        value = quantity.parse_decimal(text.removesuffix("%"))
    except quantity.QuantityError as error:
        raise _RefusedError(str(error), allowed, example) from error
    if text.endswith("%"):
        value /= 100
    if value > 1:
        problem = "is more than one GPU"
        raise _RefusedError(problem, allowed, f'{example} with {names.DEVICES}: "2"')
    if value < smallest:
        problem = "is not above zero" if value == 0 else "is below the smallest share"
        raise _RefusedError(problem, allowed, example)
    return value


def _memory(text: str, bounds: Bounds) -> int:
    most = "" if bounds.largest_gpu_mib is None else f" to {bounds.largest_gpu_mib}"
    allowed = (
        f"whole MiB from {bounds.min_share_mib}{most}, or a quantity such as 4Gi, 4000Mi or 4G"
    )
    example = f'{names.MEMORY}: "4000"'
    try:
        memory_mib = quantity.parse_memory_mib(text)
    except quantity.QuantityError as error:
        raise _RefusedError(str(error), allowed, example) from error
    if memory_mib < bounds.min_share_mib:
        raise _RefusedError("is below the smallest share", allowed, example)
    largest = bounds.largest_gpu_mib
    if memory_mib > (10**9 if largest is None else largest):
        raise _RefusedError(f"({memory_mib} MiB) is more than any known GPU has", allowed, example)
    return memory_mib


def _devices(text: str, bounds: Bounds) -> int:
    most = MAX_DEVICES if bounds.most_gpus is None else bounds.most_gpus
    allowed = f"a whole number from 1 to {most}, the GPUs of one node"
    example = f'{names.DEVICES}: "2"'
    if not (text.isascii() and text.isdigit()) or len(text) > quantity.MAX_CHARACTERS:
        raise _RefusedError("is not a whole number", allowed, example)
    if not 1 <= int(text) <= most:
        raise _RefusedError("is out of range", allowed, example)
    return int(text)


def _container_name(text: str) -> str:
    if not text or text != text.strip() or any(mark in text for mark in ", ;"):
        raise _RefusedError(
            "is not the name of one container",
            "one container of this pod",
            f'{names.CONTAINER}: "train"',
        )
    return text


def _placement(text: str) -> Policy:
    try:
        return Policy(text)
    except ValueError as error:
        allowed = " or ".join(policy.value for policy in Policy)
        example = f'{names.PLACEMENT}: "pack"'
        raise _RefusedError("is no placement policy", allowed, example) from error


def _mps(text: str) -> bool:
    if text not in ("true", "false"):
        raise _RefusedError("is neither true nor false", "true or false", f'{names.MPS}: "true"')
    return text == "true"
