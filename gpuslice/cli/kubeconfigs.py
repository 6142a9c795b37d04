# SPDX-License-Identifier: Apache-2.0
"""Which cluster a command is about: its kubeconfig."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

NO_CLUSTER = (
    "there is no cluster to ask: start one with `gpuslice demo --keep` in another terminal, or "
    "name a kubeconfig with --kubeconfig or KUBECONFIG"
)


class NoClusterError(LookupError):
    """No kubeconfig was named, and no demo is running."""


def kept_path(environment: Mapping[str, str]) -> Path:
    """Return where `gpuslice demo --keep` leaves its kubeconfig while it runs."""
    state = environment.get("XDG_STATE_HOME") or ""
    home = Path(environment.get("HOME") or "/")
    return (Path(state) if state else home / ".local" / "state") / "gpuslice" / "kubeconfig"


def find_kubeconfig(named: Path | None, environment: Mapping[str, str]) -> Path:
    """Return the kubeconfig to use: the one named, KUBECONFIG's first, or the running demo's.

    Raises:
        NoClusterError: where there is none.
    """
    if named is not None:
        return named
    if first := environment.get("KUBECONFIG", "").split(":")[0]:
        return Path(first)
    kept = kept_path(environment)
    if kept.exists():
        return kept
    raise NoClusterError(NO_CLUSTER)


@contextmanager
def kept(kubeconfig: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Leave a kubeconfig where other commands find it, as long as the block runs."""
    place = kept_path(environment)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = place.with_name(f"{place.name}.{os.getpid()}")
    draft.write_bytes(kubeconfig.read_bytes())
    draft.chmod(0o600)
    draft.replace(place)
    content = place.read_bytes()
    try:
        yield place
    finally:
        # Another demo may have put its own there meanwhile.
        if place.exists() and place.read_bytes() == content:
            place.unlink()
