# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
from typing import Any

import pytest

from gpuslice.sim.apiserver.server import ApiServer
from tests.wire.sim.apiserver.asking import PODS, Client, Said, build_binding, build_pod
from tests.wire.sim.apiserver.toyhook import (
    MUTATING,
    POD_RULE,
    VALIDATING,
    Answers,
    ToyHook,
    allow,
    annotate,
    answer,
    configuration,
    deny,
    patch,
)

Json = dict[str, Any]
POD_PATCH = {"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}


def install(client: Client, hook: ToyHook, **fields: Any) -> None:
    said = client.post(MUTATING, configuration(hook.entry(**fields)))
    assert said.code == 201, said.text


def create(client: Client, **meta: Any) -> Said:
    return client.post(PODS, build_pod(**meta))


def test_the_review_says_what_is_asked(client: Client, hook: ToyHook) -> None:
    install(client, hook, timeoutSeconds=3)
    assert create(client).code == 201
    (review,) = hook.reviews
    assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    request = review["request"]
    assert request["kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert request["requestKind"] == request["kind"]
    assert (request["name"], request["namespace"]) == ("p", "default")
    assert request["operation"] == "CREATE"
    assert request["dryRun"] is False
    assert request["userInfo"]["username"] == "system:admin"
    assert request["oldObject"] is None
    assert "subResource" not in request
    # The object is defaulted, and has nothing yet that only the server writes.
    assert request["object"]["spec"]["terminationGracePeriodSeconds"] == 30
    assert "uid" not in request["object"]["metadata"]
    assert hook.paths == ["/admit?timeout=3s"]


def test_a_token_names_the_user(server: ApiServer, client: Client, hook: ToyHook) -> None:
    install(client, hook)
    agent = Client(server.url, b"", user="system:serviceaccount:gpuslice:agent")
    create(agent)
    agent.close()
    assert hook.requests[0]["userInfo"] == {
        "username": "system:serviceaccount:gpuslice:agent",
        "groups": [
            "system:authenticated",
            "system:serviceaccounts",
            "system:serviceaccounts:gpuslice",
        ],
    }


def test_a_generated_name_is_not_yet_there(client: Client, hook: ToyHook) -> None:
    install(client, hook)
    pod = build_pod()
    pod["metadata"] = {"generateName": "web-"}
    client.post(PODS, pod)
    assert "name" not in hook.requests[0]
    assert "name" not in hook.requests[0]["object"]["metadata"]


def test_a_patch_is_applied_and_defaults_run_again(client: Client, hook: ToyHook) -> None:
    limits = {"nvidia.com/gpu-slice": "5"}
    hook.answers = patch(
        POD_PATCH, {"op": "add", "path": "/spec/containers/0/resources/limits", "value": limits}
    )
    install(client, hook)
    pod = create(client).body
    assert pod["metadata"]["labels"] == {"seen": "yes"}
    assert pod["spec"]["containers"][0]["resources"] == {"limits": limits, "requests": limits}


def test_a_patch_that_makes_an_invalid_pod_is_refused(client: Client, hook: ToyHook) -> None:
    limits = {"nvidia.com/gpu-slice": "0.5"}
    hook.answers = patch(
        {"op": "add", "path": "/spec/containers/0/resources/limits", "value": limits}
    )
    install(client, hook)
    assert create(client).why == (422, "Invalid")


def test_a_denial_bears_the_webhooks_words_and_code(client: Client, hook: ToyHook) -> None:
    hook.answers = deny("no room", 403)
    install(client, hook, failurePolicy="Ignore")
    said = create(client)
    assert said.code == 403
    assert said.body["message"] == 'admission webhook "one.hook.dev" denied the request: no room'
    assert client.names(PODS) == []


def test_a_denial_without_a_word_or_code_is_a_bad_request(client: Client, hook: ToyHook) -> None:
    hook.answers = lambda request: answer(request, allowed=False)
    install(client, hook)
    said = create(client)
    assert said.code == 400
    assert said.body["message"].endswith("denied the request without explanation")


def wait_for_the_end(hook: ToyHook) -> Answers:
    def answers(request: Json) -> Json:
        hook.ending.wait(30)
        return allow(request)

    return answers


ANSWERED_BADLY = [
    pytest.param(lambda request: {"http": 500, "raw": "broken"}, id="code 500"),
    pytest.param(lambda request: answer({"uid": "another"}), id="wrong uid"),
    pytest.param(
        lambda request: {**answer(request), "apiVersion": "admission.k8s.io/v1beta1"}, id="version"
    ),
    pytest.param(lambda request: {**answer(request), "kind": "Review"}, id="kind"),
    pytest.param(lambda request: {"raw": "no review"}, id="no review"),
    pytest.param(lambda request: answer(request, patchType="JSONPatch"), id="no patch"),
    pytest.param(lambda request: answer(request, patch="W10="), id="no patch type"),
    pytest.param(
        lambda request: answer(request, patch="W10=", patchType="Merge"), id="unknown patch type"
    ),
    pytest.param(lambda request: answer(request, patch="?", patchType="JSONPatch"), id="no base64"),
]


@pytest.mark.parametrize("answers", ANSWERED_BADLY)
def test_a_bad_answer_fails_the_write(client: Client, hook: ToyHook, answers: Answers) -> None:
    hook.answers = answers
    install(client, hook)
    said = create(client)
    assert said.why == (500, "InternalError")
    assert 'failed calling webhook "one.hook.dev"' in said.body["message"]
    assert client.names(PODS) == []


@pytest.mark.parametrize("answers", ANSWERED_BADLY)
def test_a_bad_answer_is_ignored_where_failures_are(
    client: Client, hook: ToyHook, answers: Answers
) -> None:
    hook.answers = answers
    install(client, hook, failurePolicy="Ignore")
    assert create(client).code == 201


def test_a_webhook_that_is_late_fails_the_write(client: Client, hook: ToyHook) -> None:
    hook.answers = wait_for_the_end(hook)
    install(client, hook, timeoutSeconds=1)
    said = create(client)
    assert said.code == 500
    assert "context deadline exceeded" in said.body["message"]


def test_a_webhook_that_is_late_is_ignored_where_failures_are(
    client: Client, hook: ToyHook
) -> None:
    hook.answers = wait_for_the_end(hook)
    install(client, hook, timeoutSeconds=1, failurePolicy="Ignore")
    assert create(client).code == 201


@pytest.mark.parametrize(("policy", "code"), [("Fail", 500), ("Ignore", 201)])
def test_a_webhook_that_is_away_counts_as_failed(
    client: Client, hook: ToyHook, policy: str, code: int
) -> None:
    install(client, hook, failurePolicy=policy)
    hook.stop()
    assert create(client).code == code


@pytest.mark.parametrize(("policy", "code"), [("Fail", 500), ("Ignore", 201)])
def test_a_certificate_of_another_authority_counts_as_failed(
    client: Client, hook: ToyHook, policy: str, code: int
) -> None:
    other = ToyHook()
    install(client, hook, clientConfig={**hook.client, **other.bundle}, failurePolicy=policy)
    other.stop()
    assert create(client).code == code
    assert hook.reviews == []


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
@pytest.mark.parametrize(
    "operation",
    [
        pytest.param({"op": "remove", "path": "/metadata/labels/none"}, id="points nowhere"),
        pytest.param(
            {"op": "add", "path": "/metadata/annotations", "value": {"n": 1}}, id="no text"
        ),
    ],
)
def test_a_patch_that_does_not_apply_fails_even_where_failures_are_ignored(
    client: Client, hook: ToyHook, policy: str, operation: Json
) -> None:
    hook.answers = patch(operation)
    install(client, hook, failurePolicy=policy)
    assert create(client).why == (500, "InternalError")


def test_a_server_that_asks_to_be_tried_again_is(client: Client, hook: ToyHook) -> None:
    def answers(request: Json) -> Json:
        if len(hook.reviews) < 3:
            return {"http": 503, "header": "Retry-After: 0\r\n", "raw": "soon"}
        return allow(request)

    hook.answers = answers
    install(client, hook)
    assert create(client).code == 201
    assert len({request["uid"] for request in hook.requests}) == 1


def test_warnings_reach_the_one_who_asks(client: Client, hook: ToyHook) -> None:
    hook.answers = lambda request: answer(request, warnings=['say "so"', "lost\nline", 'say "so"'])
    install(client, hook)
    assert create(client).warnings == ['299 - "say \\"so\\""']


def test_warnings_come_with_a_denial_too(client: Client, hook: ToyHook) -> None:
    hook.answers = lambda request: answer(request, allowed=False, warnings=["mind the gap"])
    install(client, hook)
    said = create(client)
    assert (said.code, said.warnings) == (400, ['299 - "mind the gap"'])


CALLED = [
    pytest.param({}, True, id="pods CREATE"),
    pytest.param({"operations": ["UPDATE", "DELETE"]}, False, id="other operations"),
    pytest.param({"operations": ["*"]}, True, id="any operation"),
    pytest.param({"resources": ["*"]}, True, id="any resource"),
    pytest.param({"resources": ["*/*"]}, True, id="any resource and subresource"),
    pytest.param({"resources": ["pods/*"]}, True, id="pods and subresources"),
    pytest.param({"resources": ["pods/binding"]}, False, id="binding"),
    pytest.param({"resources": ["nodes"]}, False, id="another resource"),
    pytest.param({"apiGroups": ["apps"]}, False, id="another group"),
    pytest.param({"apiVersions": ["v2"]}, False, id="another version"),
    pytest.param({"scope": "Cluster"}, False, id="cluster scope"),
]


@pytest.mark.parametrize(("rule", "called"), CALLED)
def test_rules_decide_who_is_called(
    client: Client, hook: ToyHook, rule: Json, *, called: bool
) -> None:
    install(client, hook, rules=[{**POD_RULE, **rule}])
    create(client)
    assert bool(hook.reviews) is called


@pytest.mark.parametrize(
    ("fields", "called"),
    [
        pytest.param(
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}},
            True,
            id="namespace",
        ),
        pytest.param(
            {
                "namespaceSelector": {
                    "matchExpressions": [
                        {
                            "key": "kubernetes.io/metadata.name",
                            "operator": "NotIn",
                            "values": ["default"],
                        }
                    ]
                }
            },
            False,
            id="another namespace",
        ),
        pytest.param({"objectSelector": {"matchLabels": {"team": "red"}}}, True, id="label"),
        pytest.param({"objectSelector": {"matchLabels": {"team": "blue"}}}, False, id="other"),
        pytest.param(
            {"matchConditions": [{"name": "a", "expression": "'gpu' in object.metadata.labels"}]},
            False,
            id="condition false",
        ),
        pytest.param(
            {"matchConditions": [{"name": "a", "expression": "request.operation == 'CREATE'"}]},
            True,
            id="condition true",
        ),
        pytest.param(
            {
                "matchConditions": [
                    {"name": "a", "expression": "'k' in object.metadata.annotations"},
                    {"name": "b", "expression": "false"},
                ]
            },
            False,
            id="an error beside a false one",
        ),
    ],
)
def test_selectors_and_conditions_decide_who_is_called(
    client: Client, hook: ToyHook, fields: Json, *, called: bool
) -> None:
    install(client, hook, **fields)
    assert create(client, labels={"team": "red"}).code == 201
    assert bool(hook.reviews) is called


@pytest.mark.parametrize(("policy", "code"), [("Fail", 403), ("Ignore", 201)])
def test_a_condition_that_is_an_error_counts_by_the_failure_policy(
    client: Client, hook: ToyHook, policy: str, code: int
) -> None:
    condition = {"name": "a", "expression": "'gpu-fraction' in object.metadata.annotations"}
    install(client, hook, matchConditions=[condition], failurePolicy=policy)
    assert create(client).code == code
    assert hook.reviews == []


def test_webhooks_are_called_by_configuration_name_then_as_listed(
    client: Client, hook: ToyHook
) -> None:
    hook.answers = allow
    order = {"b": ["b1.hook.dev", "a2.hook.dev"], "a": ["z3.hook.dev"]}
    for name, entries in order.items():
        hooks = []
        for entry in entries:
            client_config = {**hook.client, "url": f"{hook.client['url']}/{entry}"}
            hooks.append(hook.entry(entry, clientConfig=client_config))
        client.post(MUTATING, configuration(*hooks, name=name))
    create(client)
    called = [path.partition("?")[0].rpartition("/")[2] for path in hook.paths]
    assert called == ["z3.hook.dev", "b1.hook.dev", "a2.hook.dev"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("IfNeeded", ["first", "second", "first"]), ("Never", ["first", "second"])],
)
def test_a_webhook_is_called_again_when_a_later_one_changed_the_object(
    client: Client, hook: ToyHook, policy: str, expected: list[str]
) -> None:
    second = ToyHook()
    second.answers = annotate(second="yes")
    calls: list[str] = []
    for name, toy in (("first", hook), ("second", second)):
        toy.answers = _noting(calls, name, toy.answers)
    client.post(
        MUTATING,
        configuration(
            hook.entry("one.hook.dev", reinvocationPolicy=policy),
            second.entry("two.hook.dev", reinvocationPolicy=policy),
        ),
    )
    pod = create(client).body
    second.stop()
    assert calls == expected
    assert pod["metadata"]["annotations"] == {"second": "yes"}


def _noting(calls: list[str], name: str, answers: Answers) -> Answers:
    def noting(request: Json) -> Json:
        calls.append(name)
        return answers(request)

    return noting


def test_a_webhook_that_was_skipped_is_not_called_again(client: Client, hook: ToyHook) -> None:
    condition = {
        "name": "annotated",
        "expression": "has(object.metadata.annotations) && 'k' in object.metadata.annotations",
    }
    second = ToyHook()
    second.answers = annotate(k="v")
    client.post(
        MUTATING,
        configuration(
            hook.entry("one.hook.dev", reinvocationPolicy="IfNeeded", matchConditions=[condition]),
            second.entry("two.hook.dev"),
        ),
    )
    assert create(client).body["metadata"]["annotations"] == {"k": "v"}
    second.stop()
    assert hook.reviews == []


def test_validating_webhooks_see_the_mutated_object_and_cannot_change_it(
    client: Client, hook: ToyHook
) -> None:
    hook.answers = annotate(k="v")
    judge = ToyHook()
    judge.answers = patch({"op": "add", "path": "/metadata/annotations/k", "value": "w"})
    install(client, hook)
    client.post(VALIDATING, configuration(judge.entry(), is_mutating=False))
    assert create(client).body["metadata"]["annotations"] == {"k": "v"}
    judge.stop()
    assert judge.requests[0]["object"]["metadata"]["annotations"] == {"k": "v"}


def test_a_validating_webhook_judges_deletions(client: Client, hook: ToyHook) -> None:
    hook.answers = deny("keep it")
    rule = {**POD_RULE, "operations": ["DELETE"]}
    client.post(VALIDATING, configuration(hook.entry(rules=[rule]), is_mutating=False))
    create(client)
    assert client.delete(f"{PODS}/p").code == 422
    assert hook.requests[0]["object"] is None
    assert hook.requests[0]["oldObject"]["metadata"]["name"] == "p"


BINDING_RULE = {**POD_RULE, "resources": ["pods/binding", "bindings"]}


@pytest.mark.parametrize(
    ("path", "resource", "subresource"),
    [
        pytest.param(f"{PODS}/p/binding", "pods", "binding", id="pods/binding"),
        pytest.param("/api/v1/namespaces/default/bindings", "bindings", None, id="bindings"),
    ],
)
def test_a_webhooks_annotations_on_a_binding_reach_the_pod(
    client: Client, hook: ToyHook, path: str, resource: str, subresource: str | None
) -> None:
    create(client, annotations={"mine": "kept"})
    hook.answers = annotate(**{"gpuslice.dev/gpu": "GPU-1"})
    install(client, hook, rules=[BINDING_RULE])
    assert client.post(path, build_binding()).code == 201
    (request,) = hook.requests
    assert request["resource"]["resource"] == resource
    assert request.get("subResource") == subresource
    assert request["kind"]["kind"] == "Binding"
    assert (request["name"], request["namespace"]) == ("p", "default")
    assert request["object"]["target"]["name"] == "node-a"
    pod = client.get(f"{PODS}/p").body
    assert pod["spec"]["nodeName"] == "node-a"
    assert pod["metadata"]["annotations"] == {"mine": "kept", "gpuslice.dev/gpu": "GPU-1"}


def test_a_denied_binding_leaves_the_pod_as_it_was(client: Client, hook: ToyHook) -> None:
    before = create(client)
    hook.answers = deny("no single GPU has room", 409)
    install(client, hook, rules=[BINDING_RULE])
    said = client.post(f"{PODS}/p/binding", build_binding())
    assert said.code == 409
    assert said.body["message"].endswith("denied the request: no single GPU has room")
    assert client.get(f"{PODS}/p").version == before.version


def test_a_webhook_can_ask_the_server_while_it_is_asked(
    server: ApiServer, client: Client, hook: ToyHook
) -> None:
    create(client)
    inside = Client(server.url, b"")

    def answers(request: Json) -> Json:
        inside.patch(f"{PODS}/p", {"metadata": {"labels": {"asked": "yes"}}})
        return allow(request)

    hook.answers = answers
    install(client, hook, rules=[BINDING_RULE])
    assert client.post(f"{PODS}/p/binding", build_binding()).code == 201
    inside.close()
    assert client.get(f"{PODS}/p").body["metadata"]["labels"] == {"asked": "yes"}


def test_a_dry_run_is_said(client: Client, hook: ToyHook) -> None:
    install(client, hook)
    client.post(f"{PODS}?dryRun=All", build_pod())
    assert hook.requests[0]["dryRun"] is True
    assert hook.requests[0]["options"]["dryRun"] == ["All"]


def test_connections_are_kept(client: Client, hook: ToyHook) -> None:
    install(client, hook)
    for name in "abc":
        create(client, name=name)
    assert len(hook.reviews) == 3
    assert len(hook.clients) == 1


def test_a_service_is_found_by_the_resolver(hook: ToyHook) -> None:
    asked: list[tuple[str, str, int]] = []

    def resolve(namespace: str, name: str, port: int) -> tuple[str, int]:
        asked.append((namespace, name, port))
        return ("127.0.0.1", int(hook.server_address[1]))

    service = {"namespace": "system", "name": "hook", "path": "/there"}
    with ApiServer(tls=False, resolve_service=resolve) as server:
        client = Client(server.url, b"")
        install(client, hook, clientConfig={"service": service, **hook.bundle})
        assert create(client).code == 201
        client.close()
    assert asked == [("system", "hook", 443)]
    assert hook.paths == ["/there?timeout=10s"]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"name": "short"}, id="name"),
        pytest.param({"sideEffects": "Some"}, id="side effects"),
        pytest.param({"admissionReviewVersions": ["v1beta1"]}, id="version"),
        pytest.param({"timeoutSeconds": 31}, id="timeout"),
        pytest.param({"clientConfig": {"url": "http://127.0.0.1"}}, id="no TLS"),
        pytest.param({"clientConfig": {}}, id="nowhere"),
        pytest.param({"matchConditions": [{"name": "a", "expression": "object."}]}, id="CEL"),
    ],
)
def test_a_wrong_configuration_is_refused(client: Client, hook: ToyHook, fields: Json) -> None:
    said = client.post(MUTATING, configuration({**hook.entry(), **fields}))
    assert said.why == (422, "Invalid")


def test_an_admitted_patch_of_nothing_is_fine(client: Client, hook: ToyHook) -> None:
    encoded = base64.b64encode(b"[]").decode()
    hook.answers = lambda request: answer(request, patch=encoded, patchType="JSONPatch")
    install(client, hook)
    assert create(client).code == 201
