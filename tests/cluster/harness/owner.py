# SPDX-License-Identifier: Apache-2.0
"""The process that holds a cluster of `make cluster`, until `make cluster-down` ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from . import deployment
from .cluster import Cluster
from .errors import HarnessError
from .gpus import read_plans
from .namespaces import is_running
from .paths import REPOSITORY, run_folder
from .waiting import wait_until

_PID = "owner.pid"
_UP = "up"


def start(*, name: str, kube_version: str, gpus: Path, is_empty: bool) -> Iterator[str]:
    """Start the owner, and pass on what it says until its cluster is up.

    Raises:
        HarnessError: it ended instead; it has said why.
    """
    process = subprocess.Popen(
        (
            *(sys.executable, "-m", __name__, name, kube_version, str(gpus.resolve())),
            *(("empty",) if is_empty else ()),
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=REPOSITORY,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.strip() == _UP:
                process.returncode = 0  # it stays, and is nobody's child to wait for
                return
            yield line.rstrip("\n")
    except BaseException:
        process.terminate()
        raise
    raise HarnessError(f"the cluster did not come up (exit {process.wait()})")


def stop(name: str) -> float:
    """End the owner, and wait until nothing is left of its cluster.

    Returns:
        The seconds it took.

    Raises:
        HarnessError: there is no such cluster.
    """
    started = time.monotonic()
    folder = run_folder(name)
    try:
        pid = int((folder / _PID).read_text())
    except FileNotFoundError as err:
        raise HarnessError(f"no cluster named {name} is up") from err
    if is_running(pid) and __name__.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
        os.kill(pid, signal.SIGTERM)
    wait_until(f"{folder} is gone", lambda: not folder.exists(), timeout_seconds=60)
    return time.monotonic() - started


def _told_to_end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def main(name: str, kube_version: str, gpus: str, *rest: str) -> int:
    signal.signal(signal.SIGTERM, _told_to_end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    cluster = Cluster(read_plans(Path(gpus)), name=name, kube_version=kube_version)
    try:
        with cluster:
            (cluster.run / _PID).write_text(str(os.getpid()))
            _say(f"{len(cluster.nodes)} nodes ready in {cluster.up_seconds:.1f} s")
            if "empty" not in rest:
                started = time.monotonic()
                if deployment.INSTALL.exists():
                    cluster.deploy()
                    _say(f"gpuslice runs after {time.monotonic() - started:.1f} s more")
                else:
                    _say(f"{deployment.INSTALL} is not there: the cluster is empty")
            _say(f"export KUBECONFIG={cluster.kubeconfig}")
            _say(_UP)
            # The terminal that it was started from is let go.
            with (cluster.run / "logs" / "owner.log").open("ab") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            while True:
                signal.pause()
    except HarnessError as err:
        sys.stderr.write(f"{err}\n")
        return 1


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
