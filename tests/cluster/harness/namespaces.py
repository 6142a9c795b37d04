# SPDX-License-Identifier: Apache-2.0
"""The namespaces that hold a cluster, and within it each node.

Each has a process 1. When that dies the kernel kills everything inside, and with the last process
go its links, mounts and iptables rules: so a cluster can't outlive its owner, and a node can lose
its power. Nodes are nested in the cluster's namespaces and go with them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import HarnessError, TimedOutError
from .prerequisites import search_path

DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")

_INIT = """\
# Orphans are reaped by the kernel when process 1 ignores SIGCHLD.
trap '' CHLD
set -eu
mount -t proc proc /proc
{script}
echo ready
exec sleep infinity >/dev/null
"""


def environment() -> dict[str, str]:
    """This process's environment, fit for programs that talk only inside: no proxies."""
    kept = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    return {**kept, "PATH": search_path()}


def only_child(pid: int, *, timeout_seconds: float = 5) -> int:
    """The process that `unshare --fork` or `nsenter --pid` made, under the id that we see."""
    deadline = time.monotonic() + timeout_seconds
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while time.monotonic() < deadline:
        try:
            if found := children.read_text().split():
                return int(found[0])
        except FileNotFoundError:
            break
        time.sleep(0.002)
    raise HarnessError(f"process {pid} ended before it started its program")


def is_running(pid: int) -> bool:
    """Whether there is such a process, zombies excepted."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespaces:
    """Network, mount, process and host name namespaces, named by their process 1."""

    init_pid: int
    holder: subprocess.Popen[str] | None = None
    """The `unshare` that made them, if this process did."""

    def enter(self) -> tuple[str, ...]:
        """The start of a command line that runs inside, e.g. of `ip link`."""
        names = ("--net", "--mount", "--pid", "--uts")
        return ("nsenter", f"--target={self.init_pid}", *names, "--")

    def run(
        self, *command: str | Path, check: bool = True, timeout_seconds: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside until it ends.

        Raises:
            HarnessError: it failed and `check` is set; has what it printed.
            TimedOutError: it did not end in time, and was killed.
        """
        argv = (*self.enter(), *DIE_WITH_PARENT, *map(str, command))
        try:
            done = subprocess.run(
                argv,
                check=False,
                capture_output=True,
                text=True,
                timeout=timeout_seconds,
                env=environment(),
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as err:
            raise TimedOutError(f"{command[0]}: no end after {timeout_seconds} s") from err
        if check and done.returncode:
            shown = " ".join(map(str, command))
            raise HarnessError(f"{shown}: exit {done.returncode}: {done.stderr or done.stdout}")
        return done

    def kill(self) -> None:
        """End everything inside at once, as a power cut would, and wait until it is gone."""
        if is_running(self.init_pid):
            os.kill(self.init_pid, signal.SIGKILL)
        if self.holder is not None:
            self.holder.wait(timeout=30)
        deadline = time.monotonic() + 30
        while is_running(self.init_pid):  # the kernel ends it last of all
            if time.monotonic() > deadline:
                raise TimedOutError(f"process {self.init_pid} outlives SIGKILL for 30 s")
            time.sleep(0.005)


def create(
    script: str, *, within: Namespaces | None, kinds: Sequence[str], log: Path
) -> Namespaces:
    """Make namespaces, and prepare them with a shell script.

    The outermost end when this thread does; nested ones end with those around them, so they may
    be made from any thread.

    Args:
        script: run by their process 1, as root, before they are used.
        within: the namespaces to nest them in; None for the machine's.
        kinds: which are new, as unshare's options: `--net`, `--mount` ...; `--pid` always is.
        log: gets what the script prints on standard error.
    """
    unshare = ("unshare", "--pid", *kinds, "--fork", "--kill-child=KILL", "--")
    around = DIE_WITH_PARENT if within is None else within.enter()
    argv = (*around, *unshare, "sh", "-c", _INIT.format(script=script))
    with log.open("a") as errors:
        holder = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env=environment(),
        )
    assert holder.stdout is not None
    with holder.stdout:
        is_ready = holder.stdout.readline() == "ready\n"
    if not is_ready:
        holder.wait()
        raise HarnessError(f"namespaces could not be prepared:\n{tail(log)}")
    unshare_pid = holder.pid if within is None else only_child(holder.pid)
    return Namespaces(init_pid=only_child(unshare_pid), holder=holder)


def tail(log: Path, lines: int = 12) -> str:
    """The end of a log, for messages."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"
