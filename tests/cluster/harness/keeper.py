# SPDX-License-Identifier: Apache-2.0
"""The process that outlives a cluster's owner by a moment, to leave the machine as it was.

It makes the cluster's namespaces and then reads its standard input, whose other end only the owner
holds. The end of that, whether the owner asked for it or died, is the order to take all down. So
`Cluster.down` and a crash are one path. If the keeper itself is killed its namespaces die with
it, and the next cluster's `sweep` removes the folders and cgroups.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from . import cgroups, namespaces, network
from .errors import HarnessError
from .paths import REPOSITORY, cache_dir, locked, run_folder, run_folders

LOCK = "keeper.lock"


def remove(run: Path) -> None:
    """Remove what a cluster leaves behind when its processes are gone."""
    cgroups.remove(f"/{run.name}")
    shutil.rmtree(run, ignore_errors=True)


def sweep() -> None:
    """Remove what is left of clusters whose keeper was killed; the caller holds the lock."""
    for run in run_folders():
        with suppress(FileNotFoundError), (run / LOCK).open() as file:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                continue  # it lives
        remove(run)


def start(name: str) -> tuple[subprocess.Popen[str], namespaces.Namespaces]:
    """Make a cluster's folder and namespaces; they last until the keeper's stdin is closed.

    Raises:
        HarnessError: a cluster of this name is up, or the kernel refuses.
    """
    run = run_folder(name)
    with locked(cache_dir() / "runs.lock"):
        sweep()
        try:
            run.mkdir(mode=0o755)
        except FileExistsError as err:
            raise HarnessError(f"a cluster named {name} is up already") from err
        (run / LOCK).touch()
        keeper = subprocess.Popen(
            (sys.executable, "-m", __name__, str(run)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the owner
            cwd=REPOSITORY,
        )
        assert keeper.stdout is not None
        answer = keeper.stdout.readline().split(maxsplit=1)
    if len(answer) != 2 or answer[0] != "init":
        keeper.communicate()
        raise HarnessError(f"the cluster's namespaces could not be made: {' '.join(answer)}")
    return keeper, namespaces.Namespaces(init_pid=int(answer[1]))


def main(run: Path) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with (run / LOCK).open() as file:
        flock(file, LOCK_EX)
        try:
            inside = namespaces.create(
                network.SETUP,
                within=None,
                kinds=("--net", "--mount", "--uts"),
                log=run / "namespaces.log",
            )
        except (HarnessError, OSError) as err:
            sys.stdout.write(f"error {err}\n".replace("\n", " ") + "\n")
            remove(run)
            return 1
        sys.stdout.write(f"init {inside.init_pid}\n")
        sys.stdout.flush()
        with suppress(OSError):
            while os.read(0, 65536):
                pass
        inside.kill()
        remove(run)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
