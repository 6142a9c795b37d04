# SPDX-License-Identifier: Apache-2.0
"""`python -m gpuslice.sim.scheduler --kubeconfig FILE`: the embedded cluster's scheduler."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from gpuslice.runtime import logs
from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.lifecycle import Lifecycle
from gpuslice.sim.scheduler.scheduler import NAME, Scheduler


def main(argv: Sequence[str] | None = None) -> int:
    """Place pods until a signal comes."""
    parser = argparse.ArgumentParser(prog="python -m gpuslice.sim.scheduler")
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--name", default=NAME)
    parser.add_argument("--seed", type=int, help="of ties and pauses")
    asked = parser.parse_args(argv)
    logs.configure()
    life = Lifecycle()
    life.catch_signals()
    client = KubeClient(config.load(asked.kubeconfig), component="sim-scheduler")
    rng = random.Random(asked.seed)  # noqa: S311 - ties, not secrets
    scheduler = Scheduler(client, name=asked.name, rng=rng).start()
    life.add("scheduler", scheduler.stop, deadline_seconds=2.0)
    return life.run()


if __name__ == "__main__":
    sys.exit(main())
