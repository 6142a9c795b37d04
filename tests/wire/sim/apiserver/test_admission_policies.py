# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from gpuslice.sim.apiserver.server import ApiServer
from tests.wire.sim.apiserver.asking import PODS, Client, build_pod
from tests.wire.sim.apiserver.toyhook import ADMISSION, POD_RULE

Json = dict[str, Any]
RULE = {**POD_RULE, "operations": ["UPDATE"]}
UNCHANGED = (
    "object.metadata.?annotations['gpuslice.dev/gpu'] == "
    "oldObject.metadata.?annotations['gpuslice.dev/gpu']"
)


def install(client: Client, *, actions: tuple[str, ...] = ("Deny",), **spec: Any) -> None:
    policy = {
        "metadata": {"name": "locked"},
        "spec": {"matchConstraints": {"resourceRules": [RULE]}, **spec},
    }
    binding = {
        "metadata": {"name": "everywhere"},
        "spec": {"policyName": "locked", "validationActions": list(actions)},
    }
    assert client.post(f"{ADMISSION}/validatingadmissionpolicies", policy).code == 201
    assert client.post(f"{ADMISSION}/validatingadmissionpolicybindings", binding).code == 201


def change(client: Client) -> Any:
    return client.patch(f"{PODS}/p", {"metadata": {"annotations": {"gpuslice.dev/gpu": "GPU-2"}}})


@pytest.fixture
def placed(client: Client) -> Client:
    client.post(PODS, build_pod(annotations={"gpuslice.dev/gpu": "GPU-1"}))
    return client


def test_a_policy_refuses_a_change(placed: Client) -> None:
    install(placed, validations=[{"expression": UNCHANGED, "message": "the arbiter's own"}])
    said = change(placed)
    assert said.why == (422, "Invalid")
    assert said.body["message"] == (
        "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'locked' with binding 'everywhere' "
        "denied request: the arbiter's own"
    )
    assert placed.patch(f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}}).code == 200


def test_a_policy_can_exempt_a_user(server: ApiServer, placed: Client) -> None:
    exempt = "request.userInfo.username != 'system:serviceaccount:gpuslice:agent'"
    install(
        placed,
        matchConditions=[{"name": "not-the-agent", "expression": exempt}],
        validations=[{"expression": UNCHANGED, "reason": "Forbidden"}],
    )
    agent = Client(server.url, b"", user="system:serviceaccount:gpuslice:agent")
    assert change(agent).code == 200
    agent.close()
    said = placed.patch(f"{PODS}/p", {"metadata": {"annotations": {"gpuslice.dev/gpu": "GPU-3"}}})
    assert said.why == (403, "Forbidden")


def test_a_policys_variables_and_message_are_evaluated(placed: Client) -> None:
    install(
        placed,
        variables=[
            {"name": "old", "expression": "oldObject.metadata.annotations['gpuslice.dev/gpu']"},
            {"name": "lower", "expression": "variables.old.lowerAscii()"},
        ],
        validations=[{"expression": "false", "messageExpression": "'was ' + variables.lower"}],
    )
    assert change(placed).body["message"].endswith("denied request: was gpu-1")


def test_a_policy_that_only_warns_lets_the_change_through(placed: Client) -> None:
    install(placed, actions=("Warn",), validations=[{"expression": UNCHANGED, "message": "mind"}])
    said = change(placed)
    assert said.code == 200
    assert "mind" in said.warnings[0]


@pytest.mark.parametrize(("failure_policy", "code"), [("Fail", 422), ("Ignore", 200)])
def test_a_validation_that_is_an_error_counts_by_the_failure_policy(
    placed: Client, failure_policy: str, code: int
) -> None:
    install(
        placed,
        failurePolicy=failure_policy,
        validations=[{"expression": "object.metadata.labels['none'] == 'a'"}],
    )
    assert change(placed).code == code
