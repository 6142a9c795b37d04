# SPDX-License-Identifier: Apache-2.0
"""What admission writes on a pod that asks for a share."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import pytest

from gpuslice.contract.placement import Policy
from gpuslice.contract.shares import Share
from gpuslice.contract.slices import SliceBy, SliceRule
from tests.unit.webhook.podmaking import (
    POLICY,
    SLICES,
    admitted,
    build_container,
    build_pod,
    limits_of,
    refused,
)
from webhook.mutation import Denial, Mutation, mutate
from webhook.policies import AdmissionPolicy, Fleet

BY_MEMORY = dataclasses.replace(POLICY, rule=SliceRule(slice_by=SliceBy.MEMORY))
WHOLE = dataclasses.replace(POLICY, whole_gpu_resource="nvidia.com/gpu")


def set_path(pod: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    *above, last = path.split(".")
    place: Any = pod
    for part in above:
        place = place[int(part)] if part.isdigit() else place[part]
    place[last] = value
    return pod


@pytest.mark.parametrize(
    ("annotations", "share", "slices"),
    [
        pytest.param({"gpu-fraction": "0.5"}, "0.5", "50", id="half"),
        pytest.param({"gpu-fraction": "0.50"}, "0.5", "50", id="trailing zero"),
        pytest.param({"gpu-fraction": "50%"}, "0.5", "50", id="per cent"),
        pytest.param({"gpu-fraction": "1"}, "1", "100", id="whole"),
        pytest.param({"gpu-fraction": "0.333"}, "0.333", "33", id="rounded down"),
        pytest.param({"gpu-memory": "4000"}, "4000mi", "17", id="MiB"),
        pytest.param({"gpu-memory": "4Gi"}, "4096mi", "17", id="quantity"),
        pytest.param({"gpu-memory": "128"}, "128mi", "1", id="at least one slice"),
        pytest.param(
            {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}, "2x0.5", "100", id="two"
        ),
        pytest.param({"gpuslice.dev/gpu-fraction": "0.25"}, "0.25", "25", id="our prefix"),
        pytest.param(
            {"gpu-fraction": "0.2", "gpuslice.dev/gpu-fraction": "0.2"}, "0.2", "20", id="both"
        ),
    ],
)
def test_a_share_becomes_slices_a_fit_and_a_label(
    annotations: dict[str, str], share: str, slices: str
) -> None:
    after, _ = admitted(build_pod(annotations))
    assert limits_of(after) == {SLICES: slices, f"gpuslice.dev/fit-{share}": "1"}
    assert after["metadata"]["labels"] == {"gpuslice.dev/share": share}
    assert after["metadata"]["annotations"] == annotations


@pytest.mark.parametrize("state", ["absent", None, {}], ids=["absent", "null", "empty"])
@pytest.mark.parametrize(
    "path",
    [
        "metadata.labels",
        "spec.initContainers",
        "spec.affinity",
        "spec.containers.0.resources",
        "spec.containers.0.resources.limits",
        "spec.containers.0.resources.requests",
        "spec.containers.0.env",
    ],
)
def test_any_map_or_list_may_be_absent_null_or_empty(path: str, state: Any) -> None:
    pod = build_pod({"gpu-fraction": "0.5"}, build_container(limits={"cpu": "1"}))
    if state == "absent":
        *above, last = path.split(".")
        place: Any = pod
        for part in above:
            place = place[int(part)] if part.isdigit() else place[part]
        place.pop(last, None)
    else:
        is_list = path.endswith(("initContainers", "env"))
        pod = set_path(pod, path, [] if state == {} and is_list else state)
    result = mutate(pod, POLICY)
    assert isinstance(result, Mutation)
    from tests.unit.webhook.podmaking import patched

    after = patched(pod, result)
    resources = after["spec"]["containers"][0]["resources"]
    for kind in ("limits", "requests"):
        assert resources[kind][SLICES] == "50"
        assert resources[kind]["gpuslice.dev/fit-0.5"] == "1"


def test_what_the_container_had_stays() -> None:
    container = build_container(limits={"cpu": "2", "memory": "1Gi"})
    container["resources"]["claims"] = [{"name": "x"}]
    after, _ = admitted(
        build_pod({"gpu-fraction": "0.5", "mine": "x"}, container, labels={"a": "b"})
    )
    resources = after["spec"]["containers"][0]["resources"]
    assert resources["claims"] == [{"name": "x"}]
    assert resources["limits"].items() >= {"cpu": "2", "memory": "1Gi"}.items()
    assert after["metadata"]["labels"] == {"a": "b", "gpuslice.dev/share": "0.5"}
    assert after["metadata"]["annotations"]["mine"] == "x"


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(build_pod(), id="plain"),
        pytest.param(build_pod({"a": "b"}, labels={"c": "d"}), id="with others' annotations"),
        pytest.param(
            build_pod(None, build_container(limits={"nvidia.com/gpu": "1"})), id="whole GPU"
        ),
        pytest.param(build_pod(None, schedulerName="other"), id="another scheduler's"),
        pytest.param(build_pod(None, nodeName="n"), id="on a node"),
        pytest.param({"metadata": None, "spec": None}, id="nothing in it"),
        pytest.param({}, id="nothing at all"),
    ],
)
def test_an_ordinary_pod_is_left_as_it_is(pod: dict[str, Any]) -> None:
    assert mutate(pod, POLICY) == Mutation()


# --- which container


@pytest.mark.parametrize(
    ("names", "annotation", "chosen", "warns"),
    [
        pytest.param(["only"], None, 0, False, id="the only one"),
        pytest.param(["a", "b"], "b", 1, False, id="the named one"),
        pytest.param(["istio-proxy", "b"], None, 1, False, id="no sidecar"),
        pytest.param(["istio-proxy", "b", "c"], None, 1, True, id="the first that is none"),
        pytest.param(["a", "b"], None, 0, True, id="the first"),
        pytest.param(["a", "istio-proxy"], "istio-proxy", 1, False, id="a sidecar by name"),
    ],
)
def test_one_container_gets_the_gpu(
    names: list[str], annotation: str | None, chosen: int, *, warns: bool
) -> None:
    annotations = {"gpu-fraction": "0.5"}
    if annotation:
        annotations["gpu-fraction-container-name"] = annotation
    after, warnings = admitted(build_pod(annotations, *map(build_container, names)))
    for index in range(len(names)):
        assert bool(limits_of(after, index)) == (index == chosen)
    assert bool(warnings) == warns
    if warns:
        assert names[chosen] in warnings[0]


def test_a_sidecar_among_the_init_containers_can_be_named() -> None:
    sidecar = build_container("server", restartPolicy="Always")
    annotations = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "server"}
    after, _ = admitted(build_pod(annotations, build_container(), initContainers=[sidecar]))
    assert limits_of(after, 0, "initContainers")[SLICES] == "50"
    assert not limits_of(after)


# --- slices by hand


def test_slices_by_hand_are_a_share_and_an_annotation() -> None:
    after, _ = admitted(build_pod(None, build_container("a"), build_container("b", {SLICES: "25"})))
    assert after["metadata"]["annotations"] == {"gpuslice.dev/gpu-fraction": "0.25"}
    assert after["metadata"]["labels"] == {"gpuslice.dev/share": "0.25"}
    assert limits_of(after, 1) == {SLICES: "25", "gpuslice.dev/fit-0.25": "1"}
    assert not limits_of(after, 0)


def test_slices_by_hand_of_memory_are_an_amount_of_memory() -> None:
    after, _ = admitted(build_pod(None, build_container(limits={SLICES: "4"})), BY_MEMORY)
    assert after["metadata"]["annotations"] == {"gpuslice.dev/gpu-memory": "4096"}
    assert limits_of(after) == {SLICES: "4", "gpuslice.dev/fit-4096mi": "1"}


def test_slices_in_requests_alone_are_asked_for_too() -> None:
    container = build_container()
    container["resources"] = {"requests": {SLICES: "10"}}
    after, _ = admitted(build_pod(None, container))
    assert limits_of(after) == {SLICES: "10", "gpuslice.dev/fit-0.1": "1"}


def test_slices_that_agree_with_the_annotation_are_fine() -> None:
    container = build_container(limits={SLICES: "50"})
    after, _ = admitted(build_pod({"gpu-fraction": "0.5"}, container))
    assert limits_of(after)[SLICES] == "50"


# --- pods that were admitted before


def test_what_an_earlier_admission_left_follows_the_annotation() -> None:
    """A person printed a running pod, changed its share, and created it again."""
    before, _ = admitted(build_pod({"gpu-fraction": "0.5"}))
    before["metadata"]["annotations"] = {
        "gpu-fraction": "0.25",
        "gpuslice.dev/gpu": "GPU-1",
        "gpuslice.dev/memory-mib": "11517",
        "gpuslice.dev/slices": "50",
    }
    after, warnings = admitted(before)
    assert limits_of(after) == {SLICES: "25", "gpuslice.dev/fit-0.25": "1"}
    assert after["metadata"]["labels"] == {"gpuslice.dev/share": "0.25"}
    assert after["metadata"]["annotations"] == {"gpu-fraction": "0.25"}
    assert len(warnings) == 1
    assert "gpuslice.dev/gpu" in warnings[0]
    fresh, _ = admitted(build_pod({"gpu-fraction": "0.25"}))
    assert fresh["spec"] == after["spec"]


def test_the_gpu_moves_to_another_container_with_the_annotation() -> None:
    pods = (build_container("a"), build_container("b"))
    before, _ = admitted(build_pod({"gpu-fraction": "0.5"}, *pods))
    before["metadata"]["annotations"]["gpu-fraction-container-name"] = "b"
    after, _ = admitted(before)
    assert not limits_of(after, 0)
    assert limits_of(after, 1)[SLICES] == "50"


def test_a_copied_arbiters_annotation_is_removed_from_any_pod() -> None:
    after, warnings = admitted(build_pod({"gpuslice.dev/gpu": "GPU-1"}))
    assert after["metadata"]["annotations"] == {}
    assert warnings


def test_a_copied_label_and_fit_are_removed_from_a_pod_without_a_share() -> None:
    container = build_container(limits={"gpuslice.dev/fit-0.5": "1", "cpu": "1"})
    after, warnings = admitted(build_pod(None, container, labels={"gpuslice.dev/share": "0.5"}))
    assert after["metadata"]["labels"] == {}
    assert limits_of(after) == {"cpu": "1"}
    assert len(warnings) == 2


def test_a_foreign_fit_is_replaced_with_a_warning() -> None:
    container = build_container(limits={"gpuslice.dev/fit-0.9": "1"})
    after, warnings = admitted(build_pod({"gpu-fraction": "0.5"}, container))
    assert limits_of(after) == {SLICES: "50", "gpuslice.dev/fit-0.5": "1"}
    assert warnings


# --- whose pods


def test_an_adopted_schedulers_pod_becomes_the_default_schedulers() -> None:
    policy = dataclasses.replace(POLICY, adopted_schedulers=frozenset({"kai-scheduler"}))
    pod = build_pod({"gpu-fraction": "0.5"}, schedulerName="kai-scheduler")
    after, warnings = admitted(pod, policy)
    assert after["spec"]["schedulerName"] == "default-scheduler"
    assert "kai-scheduler" in warnings[0]


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(build_pod({"gpu-fraction": "7"}, schedulerName="other"), id="scheduler"),
        pytest.param(
            build_pod({"gpu-fraction": "0.5", "kubernetes.io/config.mirror": "x"}, nodeName="n"),
            id="mirror",
        ),
        pytest.param(
            build_pod(None, build_container(limits={SLICES: "5"}), schedulerName="other"),
            id="slices by hand",
        ),
    ],
)
def test_what_cant_share_is_left_alone_with_a_warning(pod: dict[str, Any]) -> None:
    result = mutate(pod, POLICY)
    assert isinstance(result, Mutation)
    assert result.operations == ()
    assert "can't share" in result.warnings[0]


def test_sharing_switched_off_is_a_clear_refusal_and_others_pass() -> None:
    off = dataclasses.replace(WHOLE, enabled=False)
    result = mutate(build_pod({"gpu-memory": "1024"}), off)
    assert isinstance(result, Denial)
    assert "switched off" in result.message
    whole = build_pod(None, build_container(limits={"nvidia.com/gpu": "1"}))
    assert mutate(whole, off) == Mutation()


# --- whole GPUs


@pytest.mark.parametrize(
    ("count", "share", "written"),
    [
        ("1", "1", {"gpuslice.dev/gpu-fraction": "1"}),
        (
            "2",
            "2x1",
            {"gpuslice.dev/gpu-fraction": "1", "gpuslice.dev/gpu-fraction-num-devices": "2"},
        ),
    ],
)
def test_whole_gpus_become_shares_of_one_where_that_is_set(
    count: str, share: str, written: dict[str, str]
) -> None:
    pod = build_pod(None, build_container(limits={"nvidia.com/gpu": count, "cpu": "1"}))
    after, _ = admitted(pod, WHOLE)
    total = str(int(count) * 100)
    assert limits_of(after) == {"cpu": "1", SLICES: total, f"gpuslice.dev/fit-{share}": "1"}
    assert after["metadata"]["annotations"] == written


# --- the pod's other containers

HIDING = dataclasses.replace(POLICY, hides_gpus=True)
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def test_other_containers_see_no_gpu_where_that_is_set() -> None:
    """CUDA images ask for all GPUs, and a default NVIDIA runtime gives them."""
    sidecar = build_container("own", env=[(VISIBLE, "none")])
    pod = build_pod(
        {"gpu-fraction": "0.5", "gpu-fraction-container-name": "train"},
        build_container("log", env=[("A", "b")]),
        build_container(),
        sidecar,
        initContainers=[build_container("prepare")],
    )
    after, _ = admitted(pod, HIDING)
    log, train, own = after["spec"]["containers"]
    assert log["env"] == [{"name": "A", "value": "b"}, {"name": VISIBLE, "value": "void"}]
    assert "env" not in train
    assert own["env"] == sidecar["env"]
    assert after["spec"]["initContainers"][0]["env"] == [{"name": VISIBLE, "value": "void"}]
    without, _ = admitted(pod)
    assert without["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]


def test_a_container_that_was_kept_from_gpus_gets_one_where_the_share_moves_to_it() -> None:
    pod = build_pod(
        {"gpu-fraction": "0.5", "gpu-fraction-container-name": "a"},
        build_container("a"),
        build_container("b", env=[("A", "b")]),
    )
    before, _ = admitted(pod, HIDING)
    before["metadata"]["annotations"]["gpu-fraction-container-name"] = "b"
    after, _ = admitted(before, HIDING)
    first, second = after["spec"]["containers"]
    assert first["env"] == [{"name": VISIBLE, "value": "void"}]
    assert second["env"] == [{"name": "A", "value": "b"}]


def test_pods_without_a_share_are_not_touched_by_that() -> None:
    assert mutate(build_pod(), HIDING) == Mutation()


@pytest.mark.parametrize(
    ("modes", "warns"),
    [(frozenset(), True), ({"time-slicing"}, True), ({"time-slicing", "mps"}, False)],
    ids=["no node", "no node of that mode", "a node of that mode"],
)
def test_mps_gets_a_warning_where_no_node_serves_it(modes: set[str], *, warns: bool) -> None:
    policy = dataclasses.replace(POLICY, fleet=Fleet(modes=frozenset(modes)))
    _, warnings = admitted(build_pod({"gpu-fraction": "0.5", "mps": "true"}), policy)
    assert any(each.startswith("mps: no known node") for each in warnings) == warns


# --- fits beyond the cap


def test_beyond_the_cap_a_new_share_asks_for_the_next_larger_fit() -> None:
    in_use = frozenset(Share(fraction=Fraction(each, 10)) for each in (1, 5, 7))
    policy = dataclasses.replace(POLICY, shares_in_use=in_use, most_shares=3)
    after, warnings = admitted(build_pod({"gpu-fraction": "0.3"}), policy)
    assert limits_of(after) == {SLICES: "30", "gpuslice.dev/fit-0.5": "1"}
    assert warnings == ("3 shares are in use: the pod waits for room for 0.5 (setting maxShares)",)
    assert after["metadata"]["labels"] == {"gpuslice.dev/share": "0.3"}
    own, _ = admitted(build_pod({"gpu-fraction": "0.8"}), policy)
    assert "gpuslice.dev/fit-0.8" in limits_of(own)
    memory, _ = admitted(build_pod({"gpu-memory": "4000"}), policy)
    assert "gpuslice.dev/fit-4000mi" in limits_of(memory)


# --- kinds of GPU


def test_where_gpus_differ_a_memory_share_asks_for_the_least_slices() -> None:
    policy = AdmissionPolicy(fleet=Fleet(kinds_mib=(23034, 81559), most_gpus=8))
    after, _ = admitted(build_pod({"gpu-memory": "8000"}), policy)
    assert limits_of(after)[SLICES] == "9"
    assert "between 1 and 100" in refused(
        build_pod(None, build_container(limits={SLICES: "101"})), policy
    )


# --- placement across nodes

PARTIAL, EMPTY = "gpuslice.dev/partial-room", "gpuslice.dev/empty-gpus"


def preferences(pod: dict[str, Any]) -> list[Any]:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    found = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or []
    assert isinstance(found, list)
    return found


def test_packing_prefers_nodes_with_just_enough_room() -> None:
    after, _ = admitted(build_pod({"gpu-fraction": "0.5"}))
    expressions = [term["preference"]["matchExpressions"] for term in preferences(after)]
    assert expressions == [
        [{"key": PARTIAL, "operator": "Gt", "values": ["49"]}],
        [
            {"key": PARTIAL, "operator": "Gt", "values": ["49"]},
            {"key": PARTIAL, "operator": "Lt", "values": ["60"]},
        ],
    ]


def test_spreading_prefers_nodes_with_an_empty_gpu() -> None:
    pod = build_pod({"gpu-fraction": "0.5", "gpuslice.dev/placement": "spread"})
    after, _ = admitted(pod)
    (term,) = preferences(after)
    assert term["preference"]["matchExpressions"] == [
        {"key": EMPTY, "operator": "Gt", "values": ["0"]}
    ]
    by_setting, _ = admitted(
        build_pod({"gpu-fraction": "0.5"}), dataclasses.replace(POLICY, placement=Policy.SPREAD)
    )
    assert preferences(by_setting) == [term]


@pytest.mark.parametrize("annotations", [{"gpu-fraction": "1"}, {"gpu-fraction-num-devices": "2"}])
def test_whole_and_several_gpus_prefer_no_partial_room(annotations: dict[str, str]) -> None:
    after, _ = admitted(build_pod({"gpu-fraction": "0.5", **annotations}))
    assert preferences(after) == []


def test_preferences_stand_beside_the_pods_own_and_are_replaced_with_the_share() -> None:
    own = {
        "weight": 100,
        "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]},
    }
    affinity = {
        "podAffinity": {},
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [own]},
    }
    first, _ = admitted(build_pod({"gpu-fraction": "0.5"}, affinity=affinity))
    assert preferences(first)[0] == own
    assert len(preferences(first)) == 3
    first["metadata"]["annotations"]["gpu-fraction"] = "0.2"
    second, _ = admitted(first)
    assert preferences(second)[0] == own
    assert [
        term["preference"]["matchExpressions"][0]["values"] for term in preferences(second)[1:]
    ] == [["19"], ["19"]]


# --- runtime class and MPS


def test_a_runtime_class_is_set_where_that_is_configured_and_the_pod_has_none() -> None:
    policy = dataclasses.replace(POLICY, runtime_class="nvidia")
    after, _ = admitted(build_pod({"gpu-fraction": "0.5"}), policy)
    assert after["spec"]["runtimeClassName"] == "nvidia"
    own, _ = admitted(build_pod({"gpu-fraction": "0.5"}, runtimeClassName="mine"), policy)
    assert own["spec"]["runtimeClassName"] == "mine"
    plain = build_pod()
    assert mutate(plain, policy) == Mutation()
