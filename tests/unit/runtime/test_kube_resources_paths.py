# SPDX-License-Identifier: Apache-2.0
"""Paths, keys and versions of objects; and which error an answer means."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.runtime.kube import errors
from gpuslice.runtime.kube.resources import GPU_NODES, NODES, PODS, Resource, key_of, version_of


@pytest.mark.parametrize(
    ("resource", "place", "path"),
    [
        pytest.param(PODS, {}, "/api/v1/pods", id="all-pods"),
        pytest.param(
            PODS,
            {"namespace": "n", "name": "p", "subresource": "binding"},
            "/api/v1/namespaces/n/pods/p/binding",
            id="subresource",
        ),
        pytest.param(NODES, {"name": "a"}, "/api/v1/nodes/a", id="cluster-scoped"),
        pytest.param(
            NODES, {"name": "a", "namespace": "x"}, "/api/v1/nodes/a", id="namespace-ignored"
        ),
        pytest.param(
            GPU_NODES,
            {"name": "a", "subresource": "status"},
            "/apis/gpuslice.dev/v1alpha1/gpunodes/a/status",
            id="group",
        ),
        pytest.param(NODES, {"name": "a/../b"}, "/api/v1/nodes/a%2F..%2Fb", id="escaped"),
    ],
)
def test_paths_are_as_the_api_server_has_them(
    resource: Resource, place: dict[str, str], path: str
) -> None:
    """A table of the shapes in use."""
    assert path == resource.path(**place)


def test_an_objects_key_has_its_namespace_where_it_has_one() -> None:
    """Two pods of one name in two namespaces are two."""
    assert key_of({"metadata": {"name": "p", "namespace": "n"}}) == "n/p"
    assert key_of({"metadata": {"name": "p"}}) == "p"


@pytest.mark.parametrize(
    ("meta", "version"),
    [({"resourceVersion": "17"}, 17), ({}, 0), ({"resourceVersion": "x"}, 0)],
    ids=["number", "none", "nonsense"],
)
def test_a_version_is_a_number(meta: dict[str, str], version: int) -> None:
    """9 comes before 10."""
    assert version_of({"metadata": meta}) == version


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        pytest.param(404, {"reason": "NotFound"}, errors.NotFoundError, id="404"),
        pytest.param(409, {"reason": "Conflict"}, errors.ConflictError, id="409"),
        pytest.param(409, {"reason": "AlreadyExists"}, errors.AlreadyExistsError, id="exists"),
        pytest.param(410, {"reason": "Expired"}, errors.GoneError, id="410"),
        pytest.param(401, {}, errors.UnauthorizedError, id="401"),
        pytest.param(403, {}, errors.ForbiddenError, id="403"),
        pytest.param(422, {}, errors.InvalidError, id="422"),
        pytest.param(418, {}, errors.RefusedError, id="unknown-4xx"),
        pytest.param(429, {}, errors.UnavailableError, id="429"),
        pytest.param(500, {}, errors.UnavailableError, id="500"),
        pytest.param(504, {}, errors.UnavailableError, id="504"),
        pytest.param(0, {"code": 410}, errors.GoneError, id="of-a-watch"),
    ],
)
def test_an_answers_code_tells_the_error(
    code: int, status: dict[str, Any], kind: type[errors.KubeError]
) -> None:
    """Callers catch by meaning."""
    error = errors.error_of(status, code)
    assert type(error) is kind
    assert error.code == (code or status["code"])


def test_an_error_speaks_in_the_servers_words() -> None:
    """They name the object and what is wrong."""
    error = errors.error_of({"message": 'pods "x" not found', "reason": "NotFound"}, 404)
    assert (str(error), error.reason) == ('pods "x" not found', "NotFound")
