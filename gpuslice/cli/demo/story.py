# SPDX-License-Identifier: Apache-2.0
"""The story of the demo: what is done to the embedded clusters, promise by promise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from gpuslice.cli import applying, reason_lines, reasons
from gpuslice.cli.demo.screen import Screen, indented
from gpuslice.cli.demo.verdicts import TITLES, BrokenPromiseError, Verdict
from gpuslice.cli.manifests import Manifest
from gpuslice.cli.tables import claims_table
from gpuslice.contract import gpunode, names
from gpuslice.sim.cluster import Cluster
from gpuslice.sim.observation import Observation, is_leaving, name, unscheduled_words
from gpuslice.sim.promises import arrivals, environment, halves, ledger, memory, safety

PATIENCE_SECONDS: Final = 20.0
"""A share that fits is placed within 10 s (invariant 4); a pod that is deleted ends well before."""
STEADY_SECONDS: Final = 0.7
"""How long a state must hold before it counts: longer than kubelet takes to refuse a bound pod."""
POLL_SECONDS: Final = 0.05
FIFTH: Final = "gpu-sharing-pod-5"
_OURS: Final = (
    names.ENV_GPU_PORTION,
    names.ENV_SHARE,
    names.ENV_MEMORY_LIMIT_MIB,
    names.ENV_SLICES,
)

Faults = Callable[[Observation], Iterator[str]]


class Story:
    """Acts on clusters, and gathers a verdict for each promise."""

    def __init__(self, screen: Screen, *, slices_per_gpu: int, slice_resource: str) -> None:
        """Keep where to show, and the settings that the promises depend on."""
        self._screen = screen
        self._slices_per_gpu = slices_per_gpu
        self._slice_resource = slice_resource
        self.verdicts: list[Verdict] = []

    # --- the acts

    def halves(self, cluster: Cluster, manifests: Sequence[Manifest]) -> None:
        """Promise 1: five half-GPU pods on two nodes."""
        with self._promise(1):
            self._apply(cluster, manifests)
            seen = self._settle(cluster, self._faults_of_halves)
            self._say_why(seen)

    def environments(self, cluster: Cluster) -> None:
        """Promise 2: what each container sees."""
        with self._promise(2):
            seen = self._settle(cluster, environment.faults)
            for pod in seen.running():
                if (hand_out := seen.hand_out(pod)) is not None:
                    self._screen.say(*_environment_lines(name(pod), hand_out.environment))

    def memory(self, cluster: Cluster, manifests: Sequence[Manifest]) -> None:
        """Promise 3: a third node, three memory shares, and a half that goes."""
        with self._promise(3):
            seen = cluster.observe()
            waiting = [name(pod) for pod in safety.waiting(seen)]
            fifth = waiting[0] if waiting else FIFTH
            self._screen.say(f"  a third node joins, so {fifth} can run")
            cluster.add_node("node-c")
            self._settle(cluster, lambda seen: _not_running(seen, [fifth]))
            self._apply(cluster, manifests)
            seen = self._settle(cluster, lambda seen: self._faults_of_memory(seen, fifth))
            self._say_why(seen)
            leaving = next(name(pod) for pod in seen.running() if _is_half(pod, besides=fifth))
            self._screen.say(f"  the half-GPU pod {leaving} is deleted")
            cluster.delete_pod(leaving)
            self._settle(cluster, memory.faults_at_the_end)

    def arrivals(self, cluster: Cluster) -> None:
        """Promise 4: three at once on one node of two GPUs, twice."""
        with self._promise(4):
            self._three(cluster, ("0.6", "0.6", "0.6"), end=cluster.delete_pod)
            for pod in cluster.observe().pods:
                cluster.delete_pod(name(pod))
            self._settle(cluster, _not_empty)
            self._three(cluster, ("0.6", "0.6", "0.8"), end=cluster.finish_pod)

    def _three(
        self, cluster: Cluster, fractions: Sequence[str], *, end: Callable[[str], None]
    ) -> None:
        self._screen.say(f"  {' + '.join(fractions)} arrive at once")
        arrived = [
            f"big-{fraction.replace('.', '-')}-{number}"
            for number, fraction in enumerate(fractions, start=1)
        ]
        with ThreadPoolExecutor(len(arrived)) as authors:
            # list: an error of any of them is raised here.
            list(authors.map(cluster.create_pod, map(_pod, arrived, fractions)))
        seen = self._settle(cluster, lambda seen: _faults_of_three(seen, arrived))
        self._say_why(seen)
        waited = name(safety.waiting(seen)[0])
        ending = seen.running()[0]
        ended, freed = name(ending), seen.gpus_of(ending)
        self._screen.say(f"  {ended} ends, so {waited} can run")
        end(ended)
        self._settle(cluster, lambda seen: arrivals.faults_of_turn(seen, waited, ended, freed))

    def ledgers(self, clusters: Sequence[Cluster]) -> None:
        """Promise 5: the ledgers at the end, beside what kubelets handed out."""
        with self._promise(5):
            for cluster in clusters:
                faults = self._when_quiet(cluster, ledger.faults)
                self._screen.say(*indented(claims_table(cluster.observe().gpu_nodes)))
                if faults:
                    raise BrokenPromiseError(faults)

    def not_reached(self, *numbers: int) -> None:
        """Say that promises could not be looked at."""
        for number in numbers:
            self._give(Verdict(number=number, reached=False))

    # --- how

    def _apply(self, cluster: Cluster, manifests: Sequence[Manifest]) -> None:
        for manifest in manifests:
            self._screen.say(f"  {applying.apply(cluster.client, manifest)}")

    @contextmanager
    def _promise(self, number: int) -> Iterator[None]:
        self._screen.say("", f"Promise {number}: {TITLES[number]}")
        faults: tuple[str, ...] = ()
        try:
            yield
        except BrokenPromiseError as broken:
            faults = broken.faults
        self._give(Verdict(number=number, faults=faults))

    def _give(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        self._screen.say(*verdict.lines())

    def _settle(self, cluster: Cluster, faults: Faults) -> Observation:
        """Wait until nothing is wrong, and stays so for a moment.

        Raises:
            BrokenPromiseError: at once where a GPU is promised twice or a pod is rejected, which no
                waiting mends; else when the patience is over.
        """
        seen = cluster.observe()

        def look(now: Observation) -> Iterator[str]:
            nonlocal seen
            seen = now
            self._screen.show(now)
            final = [*safety.rejected(now), *safety.overlapping(now, self._slices_per_gpu)]
            if final:
                raise BrokenPromiseError(final)
            yield from faults(now)
            yield from safety.misplaced(now)

        if wrong := self._when_quiet(cluster, look):
            raise BrokenPromiseError(wrong)
        return seen

    def _when_quiet(self, cluster: Cluster, faults: Faults) -> list[str]:
        """Return nothing once there was no fault for a moment, else what is wrong in the end."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        steady_since: float | None = None
        while True:
            cluster.check()
            wrong = list(faults(cluster.observe()))
            now = time.monotonic()
            if wrong:
                steady_since = None
            elif steady_since is None:
                steady_since = now
            elif now - steady_since >= STEADY_SECONDS:
                return []
            if now > deadline:
                return wrong or ["things don't come to rest"]
            time.sleep(POLL_SECONDS)

    def _explanation(self, seen: Observation) -> str:
        ledgers = [gpunode.ledger_of(each) for each in seen.gpu_nodes]
        lines = [
            line
            for pod in safety.waiting(seen)
            for line in reason_lines.lines_of(
                reasons.explain_pod(pod, ledgers, self._slice_resource)
            )
        ]
        return "\n".join(lines)

    def _say_why(self, seen: Observation) -> None:
        self._screen.say(*indented(self._explanation(seen).splitlines()))

    def _faults_of_halves(self, seen: Observation) -> Iterator[str]:
        yield from halves.faults(seen, self._explanation(seen))
        yield from _silent(seen)

    def _faults_of_memory(self, seen: Observation, fifth: str) -> Iterator[str]:
        yield from memory.faults_while_waiting(seen, fifth, self._explanation(seen))
        yield from _silent(seen)


def _is_half(pod: Mapping[str, Any], *, besides: str) -> bool:
    return names.FRACTION in pod["metadata"]["annotations"] and name(pod) != besides


def _pod(name_of_pod: str, fraction: str) -> dict[str, Any]:
    container = {"name": "ubuntu", "image": "ubuntu", "args": ["sleep", "infinity"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name_of_pod, "annotations": {names.FRACTION: fraction}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def _faults_of_three(seen: Observation, arrived: Sequence[str]) -> Iterator[str]:
    yield from arrivals.faults_of_three(seen, arrived)
    yield from _silent(seen)


def _silent(seen: Observation) -> Iterator[str]:
    for pod in safety.waiting(seen):
        if not unscheduled_words(pod):
            yield f"the scheduler has not said yet why {name(pod)} waits"


def _not_running(seen: Observation, wanted: Sequence[str]) -> Iterator[str]:
    running = set(map(name, seen.running()))
    for each in wanted:
        if each not in running:
            yield f"pod {each} doesn't run"


def _not_empty(seen: Observation) -> Iterator[str]:
    for pod in seen.pods:
        yield f"pod {name(pod)} is still there{' (leaving)' if is_leaving(pod) else ''}"
    for hand_out in seen.hand_outs:
        yield f"kubelet still holds the tokens of {hand_out.pod}"
    for gpu_node in seen.gpu_nodes:
        for claim in (gpu_node.get("status") or {}).get("claims") or ():
            yield f"the ledger of {gpu_node['metadata']['name']} still has {claim['pod']['name']}"


def _environment_lines(pod: str, environment: Mapping[str, str]) -> list[str]:
    """Return what ``kubectl exec POD -- env | grep`` would show, and then the rest of ours."""
    kais = [
        f"{key}={environment[key]}"
        for key in (names.ENV_VISIBLE_DEVICES, names.ENV_NUM_OF_GPUS)
        if key in environment
    ]
    ours = [f"{key}={environment[key]}" for key in sorted(environment) if key in _OURS]
    return [
        f"  exec {pod} -- env | grep -E 'NVIDIA|RUNAI'",
        *indented(kais),
        f"    {' '.join(ours)}",
    ]
