# SPDX-License-Identifier: Apache-2.0
"""`gpuslice demo`: the main job on embedded clusters, and whether every promise holds."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import click

from gpuslice.cli.demo import verdicts
from gpuslice.cli.demo.screen import Screen, screen_for
from gpuslice.cli.demo.story import Story
from gpuslice.cli.kubeconfigs import kept
from gpuslice.cli.manifests import Manifest, read_manifests
from gpuslice.runtime.settings import SettingsError
from gpuslice.sim.cluster import Cluster, ClusterError, Plan
from gpuslice.sim.nvml.driver_root import BuildError
from gpuslice.sim.processes import ProcessError

PROJECT: Final = Path(__file__).parents[3]
"""A checkout: the demo shows its deploy/ folder."""
HALVES: Final = ("crds", "queues.yaml", "gpu-fraction-pods.yaml")
MEMORIES: Final = ("gpu-memory-pods.yaml",)
EXIT_BROKEN: Final = 1


@click.command()
@click.option("--keep", is_flag=True, help="Leave the cluster running until Ctrl-C.")
@click.option(
    "--settings",
    "settings_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=PROJECT / "deploy" / "examples" / "settings" / "adopt-kai.yaml",
    help="The cluster's settings; default: the examples', which adopt kai-scheduler's pods.",
)
@click.option("--plain", is_flag=True, help="Plain lines, also on a terminal.")
def demo(settings_file: Path, *, keep: bool, plain: bool) -> int:
    """Run the sharing manifests on an embedded cluster, and check every promise."""
    screen = screen_for(terminal=sys.stdout.isatty() and not plain)
    plan = Plan(
        deploy=PROJECT / "deploy",
        library_cache=cache_folder(),
        settings_file=settings_file.absolute(),
    )
    try:
        return run(plan, screen, keep=keep)
    except (BuildError, ClusterError, ProcessError, SettingsError) as error:
        raise click.ClickException(str(error)) from error


def run(plan: Plan, screen: Screen, *, keep: bool = False) -> int:
    """Tell the story on clusters of a plan, and return the exit code: 0 if every promise holds.

    Raises:
        BuildError, ClusterError, ProcessError: where a cluster can't be brought up, or breaks down.
    """
    began = time.monotonic()
    given: Sequence[verdicts.Verdict] = ()

    def went_well() -> bool:
        return verdicts.all_hold(given)

    with _ended_by_signals(), ExitStack() as stack:
        stack.callback(screen.close)
        clusters = [stack.enter_context(_cluster(plan, screen, went_well)) for _ in range(2)]
        given = _tell(screen, *clusters)
        screen.say("", verdicts.closing_line(given, time.monotonic() - began))
        if keep:
            _wait(clusters[0], screen)
    return 0 if verdicts.all_hold(given) else EXIT_BROKEN


def _tell(screen: Screen, cluster: Cluster, small: Cluster) -> Sequence[verdicts.Verdict]:
    """Tell the story on a cluster of three nodes, and on a small one of one."""
    story = Story(
        screen,
        slices_per_gpu=cluster.settings.slices_per_gpu,
        slice_resource=cluster.settings.resource_name,
    )
    screen.say("", "An embedded cluster: two nodes, each with one GPU of 23034 MiB.")
    for name in ("node-a", "node-b"):
        cluster.add_node(name)
    story.halves(cluster, _examples(HALVES))
    if story.verdicts[-1].holds:
        story.environments(cluster)
        story.memory(cluster, _examples(MEMORIES))
    else:
        story.not_reached(2, 3)
    screen.say("", "Another one: a single node with two GPUs.")
    small.add_node("node-d", gpus=2)
    story.arrivals(small)
    story.ledgers((cluster, small))
    return story.verdicts


def _examples(names: Sequence[str]) -> list[Manifest]:
    folder = PROJECT / "deploy" / "examples"
    return [each for name in names for each in read_manifests(str(folder / name), sys.stdin)]


def cache_folder() -> Path:
    """Return where what was built once is kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(cache) if cache else Path.home() / ".cache") / "gpuslice"


@contextmanager
def _cluster(plan: Plan, screen: Screen, went_well: Callable[[], bool]) -> Iterator[Cluster]:
    """Bring a cluster up and down; its logs stay where something went wrong."""
    cluster = Cluster(plan)
    handler = logging.FileHandler(cluster.logs / "cluster.log", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logging.getLogger().addHandler(handler)
    keep_logs = True
    try:
        yield cluster.start()
        keep_logs = not went_well()
    except KeyboardInterrupt:
        keep_logs = False
        raise
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
        cluster.stop(keep_logs=keep_logs)
        if keep_logs:
            screen.say(f"The logs of each part are in {cluster.logs}")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does: in order, with nothing left behind."""

    def interrupt(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(cluster: Cluster, screen: Screen) -> None:
    """Leave the cluster running, until Ctrl-C or the end of one of its parts."""
    with kept(cluster.kubeconfig, os.environ) as place:
        screen.say(
            "",
            "The cluster of three nodes goes on until Ctrl-C. In another terminal:",
            "    gpuslice get pods -o wide",
            "    gpuslice get gpunodes",
            "    gpuslice apply -f deploy/examples    # creates again what the demo has deleted",
            "    gpuslice explain pod gpu-sharing-pod-1",
            f"Its kubeconfig: {place}",
        )
        screen.close()
        ended = threading.Event()
        try:
            while not ended.wait(1.0):
                cluster.check()
        except KeyboardInterrupt:
            screen.say("", "ending")
