# SPDX-License-Identifier: Apache-2.0
"""The demo with a mistake planted from outside: `python tests/sabotage/demo.py MISTAKE`.

It must fail, and say which promise broke. No product code knows of this.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from gpuslice.cli.demo.command import PROJECT, cache_folder, run
from gpuslice.cli.demo.screen import PlainScreen
from gpuslice.sim.cluster import Plan

HERE: Final = Path(__file__).parent
CONFIGURATION: Final = "webhook-configuration.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One way to break the demo."""

    module: str = ""
    """Below mistakes/: put on the PYTHONPATH of the product's processes."""
    arbiter: bool = True
    """Whether the API server asks the webhook about bindings."""
    settings: Path = PROJECT / "deploy" / "examples" / "settings" / "adopt-kai.yaml"


MISTAKES: Final = {
    "sums-alone": Mistake(module="all_fits", arbiter=False),
    "no-arbiter": Mistake(arbiter=False),
    "shared-mib": Mistake(module="shared_mib", settings=HERE / "coarse.yaml"),
    "none": Mistake(),
    "coarse": Mistake(settings=HERE / "coarse.yaml"),
}


def without_arbiter(deploy: Path) -> None:
    """Take the arbiter out of a copy of the webhook configuration."""
    file = deploy / CONFIGURATION
    bodies = list(yaml.safe_load_all(file.read_text()))
    for body in bodies:
        body["webhooks"] = [
            each for each in body["webhooks"] if not each["name"].startswith("bindings")
        ]
    file.write_text(yaml.safe_dump_all(bodies))


def demo(mistake: Mistake, say: Callable[[], PlainScreen] = PlainScreen) -> int:
    """Run the demo with a mistake, and return its exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        deploy = Path(scratch) / "deploy"
        shutil.copytree(PROJECT / "deploy", deploy)
        if not mistake.arbiter:
            without_arbiter(deploy)
        folder = HERE / "mistakes" / mistake.module
        plan = Plan(
            deploy=deploy,
            library_cache=cache_folder(),
            settings_file=mistake.settings,
            environment={"PYTHONPATH": str(folder)} if mistake.module else {},
        )
        return run(plan, say())


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in MISTAKES:
        sys.exit(f"usage: python tests/sabotage/demo.py {'|'.join(MISTAKES)}")
    sys.exit(demo(MISTAKES[sys.argv[1]]))
