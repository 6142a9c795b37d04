# SPDX-License-Identifier: Apache-2.0
"""The webhook's routes: AdmissionReviews in, decisions out.

A pod that is wrong gets a denial, which is HTTP 200; a request that is wrong gets a 4xx. No input
makes a 5xx.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import flask
import orjson
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from gpuslice.runtime import logs
from webhook import admission, bindings, podshape, reviews
from webhook.arbiter import Binding, Verdict
from webhook.policies import AdmissionPolicy
from webhook.reviews import Answer, Review, ReviewError

log = logs.get(__name__)

MAX_BODY_BYTES: Final = 8 * 2**20
"""The API server takes 3 MiB per object, and sends two."""
MAX_DISCARDED_BYTES: Final = 4 * MAX_BODY_BYTES

BINDINGS: Final = "/admit/bindings"
OK: Final = "200 OK"
BAD_REQUEST: Final = "400 Bad Request"
FAULT: Final = "500 Internal Server Error"
JSON: Final = "application/json"
PLAIN: Final = "text/plain; charset=utf-8"

Handler = Callable[[Review], Answer]
Wsgi = Callable[[dict[str, Any], Any], Any]
Reply = tuple[str, str, bytes]
"""Status line, content type and body."""


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
        BINDINGS: lambda review: _answer_bind(review, deciders),
    }
    # A decision in memory takes a fraction of a millisecond: threads that take turns are quicker,
    # and hold less memory, than threads that wrest the interpreter from each other. A bind waits
    # for others, so it takes no turn.
    turn = threading.Lock()
    desks = {
        route: Desk(
            route,
            handler,
            record=record,
            clock=clock,
            turn=contextlib.nullcontext() if route == BINDINGS else turn,
        )
        for route, handler in handlers.items()
    }
    for route, desk in desks.items():
        app.add_url_rule(route, endpoint=route, view_func=desk.view, methods=["POST"])

    @app.after_request
    def close_while_draining(response: flask.Response) -> flask.Response:
        if draining.is_set():
            response.headers["Connection"] = "close"
        return response

    @app.errorhandler(HTTPException)
    def plain_error(error: HTTPException) -> tuple[str, int]:
        return f"{error.name}\n", error.code or 500

    app.wsgi_app = Shortcut(  # type: ignore[method-assign]  # as Flask's own documentation does
        app.wsgi_app, desks, draining=draining, max_body_bytes=max_body_bytes
    )
    return app


def _answer_bind(review: Review, deciders: Deciders) -> Answer:
    """Answer a bind; whatever the arbiter logs meanwhile bears the request's uid."""
    with logs.about(uid=review.uid):
        return bindings.answer(review, deciders.bind)


class Desk:
    """Answers the reviews of one route."""

    def __init__(
        self,
        route: str,
        handler: Handler,
        *,
        record: Record,
        clock: Callable[[], float],
        turn: contextlib.AbstractContextManager[Any],
    ) -> None:
        """Keep what answers, and what is held meanwhile."""
        self._route = route
        self._handler = handler
        self._record = record
        self._clock = clock
        self._turn = turn

    def answer(self, body: bytes) -> Reply:
        """Return the reply to a body, whatever it is."""
        began = self._clock()
        try:
            with self._turn:
                review = reviews.decode(_decoded(body))
                answer = self._handler(review)
                encoded = orjson.dumps(reviews.encode(review, answer, orjson.dumps))
        except (ReviewError, podshape.ShapeError) as error:
            return BAD_REQUEST, PLAIN, f"{error}\n".encode(errors="replace")
        except RecursionError:
            return BAD_REQUEST, PLAIN, b"the object is nested too deeply\n"
        self._record(route=self._route, review=review, answer=answer, seconds=self._clock() - began)
        return OK, JSON, encoded

    def view(self) -> flask.Response:
        """Answer as a view of Flask."""
        try:
            body = flask.request.get_data(cache=False)
        except RequestEntityTooLarge:
            _discard(flask.request.environ["wsgi.input"])
            return flask.Response("the body is too large\n", 413)
        status, content_type, encoded = self.answer(body)
        return flask.Response(encoded, status, mimetype=content_type)


class Shortcut:
    """Leads reviews to their desks, past Flask, and leaves it all else.

    Flask's contexts and routing cost as much as a decision (`make bench-webhook`).
    """

    def __init__(
        self,
        rest: Wsgi,
        desks: Mapping[str, Desk],
        *,
        draining: threading.Event,
        max_body_bytes: int,
    ) -> None:
        """Keep where to lead what."""
        self._rest = rest
        self._desks = desks
        self._draining = draining
        self._max_body_bytes = max_body_bytes

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        """Answer one request, as WSGI has it."""
        desk = self._desks.get(environ["PATH_INFO"])
        length = environ.get("CONTENT_LENGTH") or ""
        is_plain = environ["REQUEST_METHOD"] == "POST" and length.isascii() and length.isdecimal()
        if desk is None or not is_plain or int(length) > self._max_body_bytes:
            return self._rest(environ, start_response)
        try:
            status, content_type, body = desk.answer(environ["wsgi.input"].read(int(length)))
        except Exception:  # a fault of ours: the failure policy decides, and the process goes on
            log.exception("review_failed", endpoint=environ["PATH_INFO"])
            status, content_type, body = FAULT, PLAIN, b"Internal Server Error\n"
        headers = [("Content-Type", content_type), ("Content-Length", str(len(body)))]
        if self._draining.is_set():
            headers.append(("Connection", "close"))
        start_response(status, headers)
        return [body]


def _decoded(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ReviewError(f"the body is no JSON: {error}") from error


def _discard(stream: Any) -> None:
    """Read what nobody wants, to a limit: a client that is still sending would miss the answer."""
    left = MAX_DISCARDED_BYTES
    while left > 0:
        piece = stream.read(min(left, 2**16))
        if not piece:
            return
        left -= len(piece)
