# SPDX-License-Identifier: Apache-2.0
"""Becomes another program, that dies with its parent.

The kernel's parent-death signal outlives exec, so that not even a killed demo
leaves processes: `python -m gpuslice.sim.leash PARENT-ID COMMAND...`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h."""


def main(argv: Sequence[str]) -> None:
    """Ask to be killed with the parent, then become the command.

    Args:
        argv: the parent's process id, then the command.
    """
    parent, *command = argv
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the parent has ended already")
    os.execv(command[0], command)  # noqa: S606  the point of it


if __name__ == "__main__":
    main(sys.argv[1:])
