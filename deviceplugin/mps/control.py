# SPDX-License-Identifier: Apache-2.0
"""One control daemon of CUDA's multi-process service, by the command line of NVIDIA's program.

Source: NVIDIA, "Multi-Process Service", chapters on environment variables and on
nvidia-cuda-mps-control: ``-f`` serves in the foreground, and without arguments it takes commands
on its standard input, of which the daemon's pipe folder is told in the environment.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

COMMAND_SECONDS: Final = 5.0


class ControlError(Exception):
    """The control daemon can't be started, or doesn't answer; the message says which."""


class Control:
    """A GPU's control daemon, whether it runs or not."""

    def __init__(self, program: str, uuid: str, folder: Path) -> None:
        """Keep pipes and logs in a folder of this GPU's own."""
        self._program = program
        self.pipes = folder / "pipe"
        self._logs = folder / "log"
        self._environment = {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self._logs),
            "CUDA_VISIBLE_DEVICES": uuid,
        }

    def start(self) -> subprocess.Popen[bytes]:
        """Start the daemon, as a child of this process.

        Raises:
            ControlError: where there is no such program, or no folder for it.
        """
        try:
            for folder in (self.pipes, self._logs):
                folder.mkdir(parents=True, exist_ok=True)
                # Clients of any user write into the pipes.
                folder.chmod(0o777)
            return subprocess.Popen(  # noqa: S603 - the program of the settings
                [self._program, "-f"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A signal for this process is none for the daemon, which ends in its turn.
                start_new_session=True,
            )
        except OSError as error:
            raise ControlError(f"{self._program} can't be started: {error}") from error

    def ask(self, command: str, timeout_seconds: float = COMMAND_SECONDS) -> str:
        """Give the daemon a command, and return what it answers.

        Raises:
            ControlError: where there is no daemon, or no answer in time.
        """
        try:
            done = subprocess.run(  # noqa: S603 - the program of the settings
                [self._program],
                env=self._environment,
                input=f"{command}\n",
                capture_output=True,
                text=True,
                timeout=timeout_seconds,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ControlError(f"{command}: {error}") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise ControlError(f"{command}: {said[0] if said else 'refused without a word'}")
        return done.stdout.strip()
