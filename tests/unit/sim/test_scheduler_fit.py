# SPDX-License-Identifier: Apache-2.0
"""Which nodes take a pod, which is best, and the words for none."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.sim.scheduler.accounts import Accounts
from gpuslice.sim.scheduler.cycle import Chosen, Unschedulable, decide
from gpuslice.sim.scheduler.fit import Filter, refusal
from gpuslice.sim.scheduler.views import Node, Pod
from tests.unit.sim.scheduling import node, pod

HALF = {"nvidia.com__gpu_slice": "50", "gpuslice.dev__fit_0.5": "1"}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    selector = {"nodeSelectorTerms": list(terms)}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}
    }


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def preferred(*terms: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    listed = [{"weight": weight, "preference": term} for weight, term in terms]
    return {
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": listed}}
    }


def choose(asking: Pod, nodes: list[Node], accounts: Accounts | None = None) -> str:
    decision = decide(asking, nodes, accounts or Accounts(), lambda names: names[0])
    assert isinstance(decision, Chosen), decision
    return decision.node


def message(asking: Pod, nodes: list[Node], accounts: Accounts | None = None) -> str:
    decision = decide(asking, nodes, accounts or Accounts(), lambda names: names[0])
    assert isinstance(decision, Unschedulable), decision
    return decision.message


@pytest.mark.parametrize(
    ("term", "fits"),
    [
        pytest.param(expression("zone", "In", "a", "b"), True, id="in"),
        pytest.param(expression("zone", "In", "b"), False, id="not-in-it"),
        pytest.param(expression("zone", "NotIn", "b"), True, id="notin"),
        pytest.param(expression("none", "NotIn", "b"), True, id="notin-absent"),
        pytest.param(expression("zone", "Exists"), True, id="exists"),
        pytest.param(expression("none", "Exists"), False, id="exists-absent"),
        pytest.param(expression("none", "DoesNotExist"), True, id="doesnotexist"),
        pytest.param(expression("room", "Gt", "39"), True, id="gt"),
        pytest.param(expression("room", "Gt", "40"), False, id="gt-equal"),
        pytest.param(expression("room", "Lt", "41"), True, id="lt"),
        pytest.param(expression("zone", "Gt", "1"), False, id="gt-text"),
        pytest.param(expression("none", "Lt", "1"), False, id="lt-absent"),
        pytest.param(expression("zone", "Near", "a"), False, id="unknown-operator"),
        pytest.param({}, False, id="empty-term"),
        pytest.param(
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
            True,
            id="by-name",
        ),
    ],
)
def test_required_affinity_allows_or_not(term: dict[str, Any], fits: bool) -> None:  # noqa: FBT001 - a table
    """Each operator, on a label that is there and one that isn't."""
    target = node("n", labels={"zone": "a", "room": "40"})
    refused = refusal(pod(spec=required(term)), target, {})
    assert (refused is None) == fits
    assert refused is None or refused.by is Filter.AFFINITY


def test_one_of_several_terms_is_enough() -> None:
    """Terms are alternatives, the requirements of one are not."""
    target = node("n", labels={"zone": "a"})
    either = required(expression("zone", "In", "b"), expression("zone", "In", "a"))
    assert refusal(pod(spec=either), target, {}) is None
    assert refusal(pod(spec=required()), target, {}) is not None


def test_a_node_selector_must_match_in_all() -> None:
    """As kubernetes.io/hostname does."""
    target = node("n", labels={"a": "1", "b": "2"})
    assert refusal(pod(spec={"nodeSelector": {"a": "1", "b": "2"}}), target, {}) is None
    assert refusal(pod(spec={"nodeSelector": {"a": "1", "c": "3"}}), target, {}) is not None


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        pytest.param({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, True, id="equal"),
        pytest.param({"key": "gpu", "value": "yes"}, True, id="any-effect"),
        pytest.param({"key": "gpu", "operator": "Exists"}, True, id="exists"),
        pytest.param({"operator": "Exists"}, True, id="everything"),
        pytest.param({"key": "gpu", "value": "no"}, False, id="other-value"),
        pytest.param({"key": "cpu", "operator": "Exists"}, False, id="other-key"),
        pytest.param({"operator": "Exists", "effect": "NoExecute"}, False, id="other-effect"),
        pytest.param({}, False, id="empty"),
    ],
)
def test_a_taint_keeps_away_who_does_not_tolerate_it(
    toleration: dict[str, Any],
    fits: bool,  # noqa: FBT001 - a table
) -> None:
    """The rules of tolerations."""
    target = node("n", spec={"taints": [TAINT]})
    refused = refusal(pod(spec={"tolerations": [toleration]}), target, {})
    assert (refused is None) == fits


def test_a_cordoned_node_takes_only_who_tolerates_that() -> None:
    """DaemonSets' pods do."""
    target = node("n", spec={"unschedulable": True})
    refused = refusal(pod(), target, {})
    assert refused is not None
    assert refused.by is Filter.CORDON
    daemon = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
    assert refusal(pod(spec={"tolerations": [daemon]}), target, {}) is None


def test_room_is_allocatable_less_the_sum_of_requests() -> None:
    """And nothing else: which GPU has it, the stock scheduler doesn't know."""
    target = node("n", **{"nvidia.com__gpu_slice": "100"})
    sixty = pod("a", **{"nvidia.com__gpu_slice": "60"})
    accounts = Accounts()
    assert refusal(sixty, target, accounts.used("n")) is None
    accounts.place(sixty, "n")
    second = pod("b", **{"nvidia.com__gpu_slice": "60"})
    refused = refusal(second, target, accounts.used("n"))
    assert refused is not None
    assert refused.reasons == ("Insufficient nvidia.com/gpu-slice",)
    assert not refused.is_final
    accounts.remove(sixty.uid)
    assert refusal(second, target, accounts.used("n")) is None


def test_a_resource_that_a_node_lacks_is_insufficient_for_good() -> None:
    """No pod's leaving would bring it."""
    refused = refusal(pod(**HALF), node("n"), {})
    assert refused is not None
    assert refused.reasons == (
        "Insufficient nvidia.com/gpu-slice",
        "Insufficient gpuslice.dev/fit-0.5",
    )
    assert refused.is_final


def test_a_node_takes_so_many_pods_and_no_more() -> None:
    """Whatever they ask for."""
    accounts = Accounts()
    accounts.place(pod("a"), "n")
    refused = refusal(pod("b"), node("n", pods="1"), accounts.used("n"))
    assert refused is not None
    assert refused.reasons == ("Too many pods",)


def test_the_first_filter_speaks_for_its_node() -> None:
    """A cordoned node's lack of room isn't told."""
    nodes = [node("n", spec={"unschedulable": True, "taints": [TAINT]})]
    assert "1 node(s) were unschedulable." in message(pod(**HALF), nodes)


def test_words_count_each_reason_in_the_stock_order() -> None:
    """Sorted as texts; then what preemption could do."""
    nodes = [
        node("a", **{"nvidia.com__gpu_slice": "100", "gpuslice.dev__fit_0.5": "2"}),
        node("b", **{"nvidia.com__gpu_slice": "40", "gpuslice.dev__fit_0.5": "0"}),
        node("c", labels={}, spec={"taints": [TAINT]}),
    ]
    accounts = Accounts()
    accounts.place(pod("x", **HALF), "a")
    accounts.place(pod("y", **HALF), "a")
    assert message(pod(**HALF), nodes, accounts) == (
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), "
        "2 Insufficient gpuslice.dev/fit-0.5, 2 Insufficient nvidia.com/gpu-slice. "
        "no new claims to deallocate, preemption: 0/3 nodes are available: "
        "1 No preemption victims found for incoming pod, "
        "2 Preemption is not helpful for scheduling."
    )


def test_no_nodes_have_words_of_their_own() -> None:
    """As the stock scheduler has."""
    assert message(pod(), []) == "no nodes available to schedule pods"


def test_the_emptier_node_is_better() -> None:
    """By CPU and memory: GPUs don't count."""
    accounts = Accounts()
    accounts.place(pod("x", cpu="2"), "a")
    assert choose(pod(cpu="1"), [node("a"), node("b")], accounts) == "b"


def test_a_full_gpu_node_is_as_good_as_an_empty_one() -> None:
    """So packing needs the preferred affinity that admission writes."""
    accounts = Accounts()
    half = pod("x", **HALF)
    room = {"nvidia.com__gpu_slice": "100", "gpuslice.dev__fit_0.5": "2"}
    nodes = [node("a", **room), node("b", **room)]
    seen: list[list[str]] = []
    accounts.place(half, "a")
    accounts.place(pod("y"), "b")
    decide(pod("z", **HALF), nodes, accounts, lambda names: seen.append(list(names)) or names[0])
    assert seen == [["a", "b"]]


def test_a_preference_outweighs_free_cpu() -> None:
    """Of nodes with room 0, 40 and 60, a share of 50 goes to the third."""
    nodes = [node(str(room), labels={"room": str(room)}) for room in (0, 40, 60)]
    accounts = Accounts()
    accounts.place(pod("x", cpu="2"), "60")
    asking = pod(spec=preferred((100, expression("room", "Gt", "49"))))
    assert choose(asking, nodes, accounts) == "60"


def test_preferences_add_up() -> None:
    """A tighter second term comes near best fit."""
    nodes = [node(str(room), labels={"room": str(room)}) for room in (55, 90)]
    wide, tight = expression("room", "Gt", "49"), expression("room", "Lt", "60")
    assert choose(pod(spec=preferred((50, wide), (50, tight))), nodes) == "55"


def test_a_soft_taint_is_avoided_while_another_node_has_room() -> None:
    """PreferNoSchedule."""
    soft = {"key": "old", "effect": "PreferNoSchedule"}
    nodes = [node("a", spec={"taints": [soft]}), node("b")]
    assert choose(pod(), nodes) == "b"
    assert choose(pod(), nodes[:1]) == "a"
