# SPDX-License-Identifier: Apache-2.0
"""The webhook's routes: AdmissionReviews in, decisions out.

A pod that is wrong gets a denial, which is HTTP 200; a request that is wrong gets a 4xx. No input
makes a 5xx.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import flask
import orjson
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from webhook import admission, bindings, podshape, reviews
from webhook.arbiter import Binding, Verdict
from webhook.policies import AdmissionPolicy
from webhook.reviews import Answer, Review, ReviewError

MAX_BODY_BYTES: Final = 8 * 2**20
"""The API server takes 3 MiB per object, and sends two."""
MAX_DISCARDED_BYTES: Final = 4 * MAX_BODY_BYTES

Handler = Callable[[Review], Answer]


class Record(Protocol):
    """Where decisions are counted and logged."""

    def __call__(self, *, route: str, review: Review, answer: Answer, seconds: float) -> None:
        """Take down one decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciders:
    """Who decides."""

    policy: Callable[[], AdmissionPolicy]
    """Returns the policy of this moment."""
    bind: Callable[[Binding], Verdict]


def create_app(
    deciders: Deciders,
    *,
    record: Record,
    clock: Callable[[], float],
    draining: threading.Event,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> flask.Flask:
    """Return the WSGI application.

    Args:
        deciders: who decides.
        record: takes down each decision.
        clock: monotonic seconds.
        draining: while set, every answer asks the client to connect anew, elsewhere.
        max_body_bytes: longer ones are refused unread.
    """
    app = flask.Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = max_body_bytes
    handlers: Mapping[str, Handler] = {
        "/admit/pods": lambda review: admission.admit_pod(review, deciders.policy()),
        "/admit/pods/warnings": lambda review: admission.warn_pod(review, deciders.policy()),
        "/admit/templates": lambda review: admission.warn_template(review, deciders.policy()),
        "/admit/bindings": lambda review: bindings.answer(review, deciders.bind),
    }
    for route, handler in handlers.items():
        view = _view(route, handler, record, clock)
        app.add_url_rule(route, endpoint=route, view_func=view, methods=["POST"])

    @app.after_request
    def close_while_draining(response: flask.Response) -> flask.Response:
        if draining.is_set():
            response.headers["Connection"] = "close"
        return response

    @app.errorhandler(HTTPException)
    def plain_error(error: HTTPException) -> tuple[str, int]:
        return f"{error.name}\n", error.code or 500

    return app


def _view(
    route: str, handler: Handler, record: Record, clock: Callable[[], float]
) -> Callable[[], flask.Response | tuple[str, int]]:
    def view() -> flask.Response | tuple[str, int]:
        began = clock()
        try:
            review = reviews.decode(_body())
            answer = handler(review)
        except RequestEntityTooLarge:
            _discard_body()
            return "the body is too large\n", 413
        except (ReviewError, podshape.ShapeError) as error:
            return f"{error}\n", 400
        except RecursionError:
            return "the object is nested too deeply\n", 400
        record(route=route, review=review, answer=answer, seconds=clock() - began)
        encoded = orjson.dumps(reviews.encode(review, answer, orjson.dumps))
        return flask.Response(encoded, mimetype="application/json")

    return view


def _body() -> Any:
    try:
        return orjson.loads(_read())
    except orjson.JSONDecodeError as error:
        raise ReviewError(f"the body is no JSON: {error}") from error


def _read() -> bytes:
    """Return the body; where its length is known, without the layers that count as they read."""
    request = flask.request
    length = request.content_length
    if length is None:
        return request.get_data(cache=False)
    if length > (request.max_content_length or 0):
        raise RequestEntityTooLarge
    body = request.environ["wsgi.input"].read(length)
    assert isinstance(body, bytes)
    return body


def _discard_body() -> None:
    """Read what nobody wants, to a limit: a client that is still sending would miss the answer."""
    left = MAX_DISCARDED_BYTES
    while left > 0:
        piece = flask.request.environ["wsgi.input"].read(min(left, 2**16))
        if not piece:
            return
        left -= len(piece)
