# SPDX-License-Identifier: Apache-2.0
"""AdmissionReviews on the wire."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from webhook import reviews
from webhook.reviews import Answer, ReviewError


def dump(value: object) -> bytes:
    return json.dumps(value).encode()


def body(**request: Any) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u-1", "operation": "CREATE", "object": {}, **request},
    }


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Answer(), id="allowed"),
        pytest.param(Answer(allowed=False, code=422, message="no"), id="denied"),
        pytest.param(Answer(warnings=("w",)), id="warned"),
    ],
)
@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
def test_every_answer_echoes_uid_version_and_kind(answer: Answer, version: str) -> None:
    review = reviews.decode({**body(), "apiVersion": version})
    encoded = reviews.encode(review, answer, dump)
    assert (version, "AdmissionReview", "u-1") == (
        encoded["apiVersion"],
        encoded["kind"],
        encoded["response"]["uid"],
    )


def test_a_patch_comes_with_its_type_and_nothing_to_do_with_neither() -> None:
    review = reviews.decode(body())
    operation: Any = {"op": "add", "path": "/a", "value": 1}
    with_patch = reviews.encode(review, Answer(operations=(operation,)), dump)["response"]
    assert with_patch["patchType"] == "JSONPatch"
    assert [operation] == json.loads(base64.b64decode(with_patch["patch"]))
    without = reviews.encode(review, Answer(), dump)["response"]
    assert without.keys() == {"uid", "allowed"}


def test_a_denial_has_code_and_message_and_never_a_patch() -> None:
    review = reviews.decode(body())
    operation: Any = {"op": "add", "path": "/a", "value": 1}
    answer = Answer(allowed=False, code=409, message="no room", operations=(operation,))
    response = reviews.encode(review, answer, dump)["response"]
    assert response == {
        "uid": "u-1",
        "allowed": False,
        "status": {"code": 409, "message": "no room"},
    }


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param([], id="a list"),
        pytest.param(None, id="null"),
        pytest.param({}, id="empty"),
        pytest.param({**body(), "apiVersion": "v1"}, id="another API"),
        pytest.param({**body(), "apiVersion": 1}, id="a number as version"),
        pytest.param({**body(), "kind": "Pod"}, id="another kind"),
        pytest.param({**body(), "request": None}, id="no request"),
        pytest.param(body(uid=None), id="no uid"),
        pytest.param(body(uid=7), id="a number as uid"),
        pytest.param(body(object=[]), id="a list as object"),
        pytest.param(body(kind="Pod"), id="a text as kind"),
        pytest.param(body(name=3), id="a number as name"),
    ],
)
def test_what_is_no_review_is_refused(wrong: object) -> None:
    with pytest.raises(ReviewError):
        reviews.decode(wrong)


def test_fields_may_be_missing() -> None:
    review = reviews.decode({**body(), "request": {"uid": "u"}})
    assert (review.content, review.dry_run, review.sub_resource) == (None, False, "")


def test_warnings_are_of_one_line_and_not_longer_than_the_api_server_passes_on() -> None:
    words = "container train gets the GPU " * 10
    cleaned = reviews.clean_warnings((f"first\nsecond\x07 {words}", "short", "short"))
    assert all(len(line) <= 120 and line.isprintable() for line in cleaned)
    assert cleaned[-1] == "short"
    assert cleaned.count("short") == 1
    assert "first second" in cleaned[0]
    assert (
        words.split()
        == [word for line in cleaned[:-1] for word in line.removeprefix("... ").split()][2:]
    )


def test_endless_warnings_are_cut_below_the_servers_limit() -> None:
    cleaned = reviews.clean_warnings([f"{number} {'x' * 110}" for number in range(100)])
    assert 3500 < sum(map(len, cleaned)) <= reviews.MAX_WARNINGS_CHARACTERS
