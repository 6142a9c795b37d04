# SPDX-License-Identifier: Apache-2.0
"""Laws of admission over whole pods."""

from __future__ import annotations

import copy
import json
import threading
from fractions import Fraction
from typing import Any

import jsonpatch
import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuslice.contract import pods
from gpuslice.contract.placement import Policy
from gpuslice.contract.shares import Share, parse_share
from gpuslice.contract.slices import SliceBy, SliceRule
from webhook import mutation, podshape
from webhook.app import Deciders, create_app
from webhook.arbiter import Verdict
from webhook.mutation import Denial, Mutation
from webhook.policies import AdmissionPolicy, Fleet

SLICES = "nvidia.com/gpu-slice"
ARBITERS = ("gpuslice.dev/gpu", "gpuslice.dev/memory-mib", "gpuslice.dev/slices")


def maybe(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), value, value, value)


words = st.text(max_size=8)
fractions = st.sampled_from(
    ["0.5", "0.125", "1", "50%", ".25", "0.333", "0", "NaN", "\u0660.\u0665", "", "2"]
)
amounts = st.sampled_from(["0", "1", "2", "50", "100", "101", "0.5", "2000m", "1k", "x", 3])
own_annotations = st.fixed_dictionaries(
    {},
    optional={
        "gpu-fraction": fractions,
        "gpuslice.dev/gpu-fraction": fractions,
        "gpu-memory": st.sampled_from(["4000", "4Gi", "127", "99999999", "1e3"]),
        "gpu-fraction-num-devices": st.sampled_from(["1", "2", "8", "9", "0", "x"]),
        "gpu-fraction-container-name": st.sampled_from(["c0", "c1", "i0", "none", "a,b"]),
        "gpuslice.dev/placement": st.sampled_from(["pack", "spread", "x"]),
        "mps": st.sampled_from(["true", "false", "x"]),
        "gpuslice.dev/gpu": words,
        "gpu_memory": words,
        "kubernetes.io/config.mirror": words,
    },
)
annotations = st.builds(
    lambda ours, others: {**others, **ours},
    own_annotations,
    st.dictionaries(words, words, max_size=2),
)
resource_maps = maybe(
    st.fixed_dictionaries(
        {},
        optional={
            "cpu": st.just("1"),
            SLICES: amounts,
            "nvidia.com/gpu": amounts,
            "nvidia.com/mig-1g.10gb": st.just("1"),
            "gpuslice.dev/fit-0.5": st.just("1"),
            "gpuslice.dev/fit-~/": st.just("1"),
        },
    )
)
environments = maybe(
    st.lists(
        st.fixed_dictionaries(
            {"name": st.sampled_from(["A", "NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_X"])},
            optional={"value": maybe(words), "valueFrom": st.just({})},
        ),
        max_size=2,
    )
)


def containers(letter: str, least: int) -> st.SearchStrategy[Any]:
    one = st.fixed_dictionaries(
        {},
        optional={
            "image": words,
            "restartPolicy": maybe(st.sampled_from(["Always", "x"])),
            "resources": maybe(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "limits": resource_maps,
                        "requests": resource_maps,
                        "claims": st.just([{"name": "x"}]),
                    },
                )
            ),
            "env": environments,
        },
    )
    return st.lists(one, min_size=least, max_size=3).map(
        lambda found: [{**each, "name": f"{letter}{index}"} for index, each in enumerate(found)]
    )


terms = st.lists(
    st.fixed_dictionaries(
        {"weight": st.integers(1, 100)},
        optional={
            "preference": maybe(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "matchExpressions": maybe(
                            st.lists(
                                st.fixed_dictionaries(
                                    {
                                        "key": st.sampled_from(
                                            ["zone", "gpuslice.dev/partial-room"]
                                        ),
                                        "operator": st.just("Exists"),
                                    }
                                ),
                                max_size=2,
                            )
                        )
                    },
                )
            )
        },
    ),
    max_size=3,
)
specs = st.fixed_dictionaries(
    {"containers": containers("c", 1)},
    optional={
        "initContainers": maybe(containers("i", 0)),
        "nodeName": maybe(st.sampled_from(["", "n"])),
        "schedulerName": maybe(
            st.sampled_from(["", "default-scheduler", "kai-scheduler", "other"])
        ),
        "runtimeClassName": maybe(st.just("x")),
        "affinity": maybe(
            st.fixed_dictionaries(
                {},
                optional={
                    "nodeAffinity": maybe(
                        st.fixed_dictionaries(
                            {},
                            optional={
                                "preferredDuringSchedulingIgnoredDuringExecution": maybe(terms)
                            },
                        )
                    ),
                    "podAffinity": st.just({}),
                },
            )
        ),
    },
)
all_pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just("p")},
            optional={
                "annotations": maybe(annotations),
                "labels": maybe(
                    st.one_of(
                        st.dictionaries(words, words, max_size=2),
                        st.just({"gpuslice.dev/share": "0.5"}),
                    )
                ),
            },
        ),
        "spec": specs,
    }
)
share_pool = [parse_share(text) for text in ("0.1", "0.5", "1", "2x0.5", "4000mi")]
policies = st.builds(
    AdmissionPolicy,
    rule=st.sampled_from(
        [
            SliceRule(),
            SliceRule(slices_per_gpu=10),
            SliceRule(slice_by=SliceBy.MEMORY),
            SliceRule(slice_by=SliceBy.MEMORY, slice_memory_mib=100),
        ]
    ),
    fleet=st.sampled_from(
        [
            Fleet(),
            Fleet(kinds_mib=(23034,), most_gpus=2),
            Fleet(kinds_mib=(15360, 81559), most_gpus=8),
        ]
    ),
    shares_in_use=st.sets(st.sampled_from(share_pool)).map(frozenset),
    most_shares=st.sampled_from([1, 3, 64]),
    placement=st.sampled_from(Policy),
    adopted_schedulers=st.sampled_from([frozenset(), frozenset({"kai-scheduler"})]),
    whole_gpu_resource=st.sampled_from([None, "nvidia.com/gpu"]),
    runtime_class=st.sampled_from([None, "nvidia"]),
    enabled=st.sampled_from([True, True, True, False]),
)


def apply(pod: Any, result: Mutation) -> Any:
    return jsonpatch.apply_patch(
        copy.deepcopy(pod), json.loads(json.dumps([dict(each) for each in result.operations]))
    )


def totals(pod: Any, resource: str) -> int:
    return sum(pods.asked_of(each, resource) for each in pods.containers(pod))


@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(pod=all_pods, policy=policies)
def test_a_patch_applies_once_changes_only_what_is_ours_and_asks_for_exactly_the_share(
    pod: Any, policy: AdmissionPolicy
) -> None:
    podshape.check_pod(pod)
    before = copy.deepcopy(pod)
    result = mutation.mutate(pod, policy)
    assert pod == before
    if isinstance(result, Denial):
        assert result.errors
        assert result.message.isprintable()
        return
    after = apply(pod, result)
    podshape.check_pod(after)
    again = mutation.mutate(after, policy)
    assert isinstance(again, Mutation), again
    assert again.operations == ()
    assert _without_ours(after) == _without_ours(before)
    label = pods.labels_of(after).get("gpuslice.dev/share")
    if not result.operations or label is None:
        return
    share = parse_share(label)
    expected = policy.rule.slices_of_share(share, policy.kinds_mib) * share.devices
    assert totals(after, SLICES) == expected
    ask = pods.ask(after, SLICES)
    assert ask is not None
    assert ask.demand.share == share
    assert ask.demand.total_slices == expected
    assert ask.fit == policy.fit_of(share)
    assert not set(ARBITERS) & set(pods.annotations_of(after))
    for container in pods.containers(after):
        limits, requests = (
            {
                key: value
                for key, value in pods.resources(container, kind).items()
                if key.startswith("gpuslice.dev/fit-")
            }
            for kind in ("limits", "requests")
        )
        assert limits == requests
        assert len(limits) == (container.get("name") == ask.container)


def _without_ours(pod: Any) -> Any:
    """Return a pod without what admission may change, its nulls and empty maps the same."""
    pod = copy.deepcopy(pod)
    metadata, spec = pod["metadata"], pod["spec"]
    for key in ("schedulerName", "runtimeClassName"):
        spec.pop(key, None)
    for kind in ("annotations", "labels"):
        metadata[kind] = {
            key: value
            for key, value in (metadata.get(kind) or {}).items()
            if not key.startswith("gpuslice.dev/")
        }
    for container in pods.containers(pod):
        resources = container.get("resources") or {}
        assert isinstance(container, dict)
        container["resources"] = {
            **resources,
            **{
                kind: {
                    key: value
                    for key, value in (resources.get(kind) or {}).items()
                    if key not in (SLICES, "nvidia.com/gpu")
                    and not key.startswith("gpuslice.dev/fit-")
                }
                for kind in ("limits", "requests")
            },
        }
    affinity = spec.get("affinity") or {}
    node = affinity.get("nodeAffinity") or {}
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    kept = [term for term in node.get(key) or [] if not _is_about_our_labels(term)]
    spec["affinity"] = {**affinity, "nodeAffinity": {**node, key: kept}}
    return pod


def _is_about_our_labels(term: Any) -> bool:
    expressions = (term.get("preference") or {}).get("matchExpressions") or []
    return bool(expressions) and all(
        each["key"].startswith("gpuslice.dev/") for each in expressions
    )


# --- the endpoints, over anything at all

junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)
holes = ("metadata", "spec", "annotations", "labels", "containers", "resources", "limits", "env",
         "affinity", "nodeAffinity", "name", "target")  # fmt: skip


@st.composite
def broken(draw: st.DrawFn) -> Any:
    """A pod or Binding with junk in one of its places."""
    pod = copy.deepcopy(draw(all_pods))
    pod["target"] = {"kind": "Node", "name": "n"}
    hole, filling = draw(st.sampled_from(holes)), draw(junk)

    def fill(item: Any) -> None:
        if isinstance(item, dict):
            for key in list(item):
                if key == hole:
                    item[key] = filling
                else:
                    fill(item[key])
        elif isinstance(item, list):
            for each in item:
                fill(each)

    fill(pod)
    return pod


def client() -> Any:
    app = create_app(
        Deciders(
            policy=lambda: AdmissionPolicy(fleet=Fleet(kinds_mib=(23034,), most_gpus=2)),
            bind=lambda _binding: Verdict(outcome="granted", annotations={"gpuslice.dev/gpu": "G"}),
        ),
        record=lambda **_about: None,
        clock=lambda: 0.0,
        draining=threading.Event(),
    )
    return app.test_client()


CLIENT = client()
ROUTES = ("/admit/pods", "/admit/pods/warnings", "/admit/templates", "/admit/bindings")


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    route=st.sampled_from(ROUTES),
    kind=st.sampled_from(["Pod", "Binding", "Deployment", "CronJob", "Secret"]),
    thing=st.one_of(broken(), all_pods, junk),
    inside=st.booleans(),
)
def test_no_input_makes_a_5xx(route: str, kind: str, thing: Any, *, inside: bool) -> None:
    content = {"spec": {"template": thing}, "metadata": {}} if inside else thing
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "operation": "CREATE",
            "kind": {"kind": kind},
            "name": "p",
            "object": content,
        },
    }
    answer = CLIENT.post(route, data=json.dumps(review), content_type="application/json")
    assert answer.status_code in (200, 400)
    if answer.status_code == 200:
        response = orjson.loads(answer.data)["response"]
        assert response["uid"] == "u"
        assert ("patch" in response) == ("patchType" in response)
        assert all(len(line) <= 120 for line in response.get("warnings", []))


@settings(max_examples=200, deadline=None)
@given(body=st.one_of(st.binary(max_size=60), junk.map(lambda value: json.dumps(value).encode())))
def test_no_body_makes_a_5xx(body: bytes) -> None:
    assert CLIENT.post("/admit/pods", data=body).status_code == 400


@given(
    fraction=st.integers(1, 100).map(lambda hundredths: Fraction(hundredths, 100)),
    devices=st.integers(1, 8),
)
def test_annotation_slices_and_share_are_one_thing(fraction: Fraction, devices: int) -> None:
    policy = AdmissionPolicy(fleet=Fleet(kinds_mib=(23034,), most_gpus=8))
    share = Share(fraction=fraction, devices=devices)
    text = str(Share(fraction=fraction))
    pod = {
        "metadata": {
            "annotations": {"gpu-fraction": text, "gpu-fraction-num-devices": str(devices)}
        },
        "spec": {"containers": [{"name": "c"}]},
    }
    result = mutation.mutate(pod, policy)
    assert isinstance(result, Mutation)
    ask = pods.ask(apply(pod, result), SLICES)
    assert ask is not None
    assert ask.demand.share == share
    assert ask.demand.slices == fraction * 100
