# SPDX-License-Identifier: Apache-2.0
"""Runs of the demo as a user starts them, and what they leave behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).parents[3]
MARK = "GPUSLICE_TEST_RUN"
"""In the environment of every process of one run, so that what is left of it can be found."""
DEMO = (sys.executable, "-m", "gpuslice.cli", "demo")


class DemoRun:
    """One run, its output read as it comes."""

    def __init__(self, command: Sequence[str], home: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.environment = {
            **os.environ,
            MARK: self.mark,
            "XDG_STATE_HOME": str(home / "state"),
            "PYTHONUNBUFFERED": "1",
        }
        self.environment.pop("KUBECONFIG", None)
        self.lines: list[str] = []
        self._commands: set[str] = set()
        self._told = threading.Condition()
        self._process = subprocess.Popen(
            # Tests may be started in the background, where a shell has Ctrl-C ignored.
            ["env", "--default-signal=INT", *command],
            cwd=PROJECT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                with self._told:
                    self.lines.append(line.rstrip("\n"))
                    self._told.notify_all()
        self._process.wait()
        with self._told:
            self._told.notify_all()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, text: str, seconds: float = 100) -> None:
        """Wait for a line that contains a text."""
        with self._told:
            self._told.wait_for(lambda: text in self.output or not self.is_alive, seconds)
        assert text in self.output, self.output

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self, seconds: float = 120) -> int:
        """Wait for the end by itself, and return the exit code."""
        code = self._process.wait(seconds)
        self._reader.join(5)
        return code

    def close(self) -> None:
        """End it if it still runs, and remove what it had to leave."""
        self._process.kill()
        self.end()
        for folder in self.folders():
            shutil.rmtree(folder, ignore_errors=True)

    def folders(self) -> set[Path]:
        """Return the folders of its clusters, as far as their processes or its output name them."""
        named = "\n".join([self.output, *self._commands])
        return set(map(Path, re.findall(r"/tmp/gpuslice-\w+", named)))

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a `gpuslice` command beside it."""
        return subprocess.run(
            [sys.executable, "-m", "gpuslice.cli", *arguments],
            cwd=PROJECT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def left_behind(self) -> dict[int, str]:
        """Return the processes of this run that live, by id."""
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            try:
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                    command = (folder / "cmdline").read_text().replace("\0", " ")
                    self._commands.add(command)
                    found[int(folder.name)] = command
            except OSError:  # ended meanwhile, or another user's
                continue
        return found

    def wait_until_nothing_is_left(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while left := self.left_behind():
            assert time.monotonic() < deadline, left
            time.sleep(0.05)

    def verdicts(self) -> dict[int, str]:
        """Return the word for each promise."""
        return {
            int(number): word
            for word, number in re.findall(
                r"^(PASS|FAIL|----)  promise (\d)", self.output, re.MULTILINE
            )
        }
