# SPDX-License-Identifier: Apache-2.0
"""What is true at any moment: no GPU promised twice, no pod rejected, tokens where they belong.

Invariants 1 to 3 of the design, over what kubelets handed out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpuslice.contract import names
from gpuslice.sim.observation import Json, Observation, is_bound, is_leaving, name, phase, wish


def faults(seen: Observation, slices_per_gpu: int) -> Iterator[str]:
    """Yield what is wrong, each in one sentence."""
    yield from rejected(seen)
    yield from overlapping(seen, slices_per_gpu)
    yield from misplaced(seen)


def rejected(seen: Observation) -> Iterator[str]:
    """Yield the pods that a kubelet refused, with its words."""
    for pod in seen.pods:
        status = pod.get("status") or {}
        # A pod that is deleted while it runs ends as Failed too, but without a reason.
        if phase(pod) == "Failed" and (status.get("reason") or not is_leaving(pod)):
            said = f"{status.get('reason', '')}: {status.get('message', '')}"
            yield f"pod {name(pod)} was rejected by its kubelet: {said}"


def overlapping(seen: Observation, slices_per_gpu: int) -> Iterator[str]:
    """Yield the GPUs of which more is handed out than there is, in tokens or in MiB."""
    tokens = Counter((each.node, token) for each in seen.hand_outs for token in each.tokens)
    for (node, token), times in sorted(tokens.items()):
        if times > 1:
            yield f"token {token} of node {node} is handed out {times} times"
    for gpu in seen.gpus:
        users = [pod for pod in seen.running() if gpu.uuid in seen.gpus_of(pod)]
        taken_mib = sum(asked.mib_on(gpu.memory_mib) for asked in map(wish, users) if asked)
        if taken_mib > gpu.memory_mib:
            who = ", ".join(sorted(map(name, users)))
            yield (
                f"GPU {gpu.uuid} of node {gpu.node} has {gpu.memory_mib} MiB, and {taken_mib} MiB "
                f"of it are promised: two claims share MiB ({who})"
            )
        taken = sum(each.tokens_by_gpu().get(gpu.uuid, 0) for each in seen.hand_outs)
        if taken > slices_per_gpu:
            yield f"GPU {gpu.uuid} of node {gpu.node} has {slices_per_gpu} slices, {taken} are out"


def misplaced(seen: Observation) -> Iterator[str]:
    """Yield the running pods whose tokens are not on the GPU that their annotation names."""
    for pod in seen.running():
        if wish(pod) is None:
            continue
        said = _annotated_gpus(pod)
        real = seen.gpus_of(pod)
        if said != real:
            yield (
                f"pod {name(pod)} is told to be on GPU {', '.join(said) or '(none)'}, and kubelet "
                f"gave it tokens of {', '.join(real) or '(none)'}"
            )


def _annotated_gpus(pod: Json) -> tuple[str, ...]:
    text = (pod["metadata"].get("annotations") or {}).get(names.GPU_ANNOTATION, "")
    return tuple(sorted(filter(None, text.split(","))))


def waiting(seen: Observation) -> tuple[Json, ...]:
    """Return the pods that are on no node."""
    return tuple(pod for pod in seen.pods if phase(pod) == "Pending" and not is_bound(pod))
