# SPDX-License-Identifier: Apache-2.0
"""What a cluster may have left on the machine: nothing, if the harness keeps its promise."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from . import cgroups
from .nodeconfig import SHIELDED_SYSCTLS
from .paths import run_folder


def of_cluster(name: str) -> list[str]:
    """One line for each folder, cgroup, process and mount that belongs to a cluster."""
    folder = run_folder(name)
    mark = re.compile(re.escape(folder.name) + r"(?![\w-])")  # and not that of `name-2`
    found = [f"folder {folder}"] if folder.exists() else []
    found += [
        f"cgroup {group}"
        for hierarchy in cgroups.hierarchies()
        if (group := hierarchy / folder.name).exists()
    ]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            mounts = (process / "mountinfo").read_text()
        except OSError:  # it ended meanwhile
            continue
        found += [f"process {process.name}: {command}"] if mark.search(command) else []
        found += [f"mounts of process {process.name}: {command}"] if mark.search(mounts) else []
    return found


def of_machine() -> dict[str, str]:
    """What no cluster may change: the machine's links, mounts, iptables rules and sysctls."""
    commands = {
        "links": ("ip", "-o", "link"),
        "addresses": ("ip", "-o", "-4", "addr", "show"),
        "routes": ("ip", "route"),
        "namespaces": ("ip", "netns"),
        "rules": ("iptables-save", "-t", "nat"),
    }
    seen = {
        what: subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for what, command in commands.items()
    }
    seen["rules"] = re.sub(r"(?m)^#.*\n", "", seen["rules"])  # with the time of day
    seen["mounts"] = Path("/proc/self/mounts").read_text()
    for item in SHIELDED_SYSCTLS:
        seen[item] = Path("/proc/sys", item).read_text()
    return seen
