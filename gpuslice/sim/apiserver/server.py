# SPDX-License-Identifier: Apache-2.0
"""The embedded cluster's API server, as the rest of the cluster starts and stops it."""

from __future__ import annotations

import base64
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

import yaml

from gpuslice.sim.apiserver import objects
from gpuslice.sim.apiserver.admission import WebhookAdmission
from gpuslice.sim.apiserver.certificates import self_signed
from gpuslice.sim.apiserver.connections import Listener
from gpuslice.sim.apiserver.deletion import Deletion
from gpuslice.sim.apiserver.dispatch import Dispatch
from gpuslice.sim.apiserver.kinds import CRDS, NAMESPACES, Served
from gpuslice.sim.apiserver.reads import Reads
from gpuslice.sim.apiserver.rules import rules_of
from gpuslice.sim.apiserver.store import Store
from gpuslice.sim.apiserver.writes import Writes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
ADMIN = "system:admin"


class ApiServer:
    """An API server over HTTPS, or plain HTTP, on one address.

    Args:
        host: the address to listen on.
        port: 0 for any free one.
        tls: whether to serve HTTPS, with a certificate of its own making.
        clock: the time of day in UTC.
        history_limit: changes kept per resource; a watch from before them is answered 410.
        bookmark_seconds: the quiet time after which a watch that wants bookmarks gets one.
        resolve_service: finds a webhook's service: (namespace, name, port) to (host, port).
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: bool = True,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        history_limit: int = 2_000,
        bookmark_seconds: float = 10.0,
        resolve_service: Callable[[str, str, int], tuple[str, int]] | None = None,
    ) -> None:
        self.store = Store(history_limit=history_limit)
        self._clock = clock
        self._served = Served()
        self.store.observe(CRDS.resource, self._serve_crds)
        self._admission = WebhookAdmission(self.store, resolve=resolve_service)
        reads = Reads(self.store)
        dispatch = Dispatch(
            served=self._served,
            store=self.store,
            reads=reads,
            writes=Writes(
                store=self.store,
                reads=reads,
                deletion=Deletion(self.store, clock),
                admission=self._admission,
                clock=clock,
            ),
            bookmark_seconds=bookmark_seconds,
        )
        self._certificate = self_signed(sorted({host, "localhost"})) if tls else None
        context = self._certificate.server_context() if self._certificate else None
        self._listener = Listener((host, port), dispatch, context)
        self._thread: threading.Thread | None = None
        for name in FIRST_NAMESPACES:
            self._create_namespace(name)

    @property
    def url(self) -> str:
        host, port = self._listener.server_address[:2]
        scheme = "https" if self._certificate else "http"
        return f"{scheme}://{host!s}:{port}"

    @property
    def ca_pem(self) -> bytes:
        """The certificate that clients must trust; empty without TLS."""
        return self._certificate.certificate if self._certificate else b""

    def kubeconfig(self, path: Path, *, user: str = ADMIN) -> Path:
        """Write a kubeconfig for a user; the token is the user's name.

        Args:
            path: the file to write.
            user: such as `system:serviceaccount:gpuslice:agent` or `system:node:node-a`.
        """
        cluster = {"server": self.url}
        if self._certificate:
            cluster["certificate-authority-data"] = base64.b64encode(self.ca_pem).decode()
        context = {"cluster": "gpuslice", "user": user, "namespace": "default"}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "gpuslice",
                    "clusters": [{"name": "gpuslice", "cluster": cluster}],
                    "users": [{"name": user, "user": {"token": user}}],
                    "contexts": [{"name": "gpuslice", "context": context}],
                },
                sort_keys=False,
            ),
            encoding="utf-8",
        )
        return path

    def start(self) -> Self:
        self._thread = threading.Thread(
            target=self._listener.serve_forever,
            name="apiserver",
            daemon=True,
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """End watches, close connections and the port. Takes well below a second."""
        if self._thread is not None:
            self._listener.wake()
            self._listener.shutdown()
            self._thread.join()
            self._thread = None
        self.store.end_watches()
        self._listener.hang_up()
        self._listener.server_close()
        self._admission.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _create_namespace(self, name: str) -> None:
        rules = rules_of(NAMESPACES)
        shape = {"apiVersion": "v1", "kind": NAMESPACES.kind, "metadata": {"name": name}}
        content = rules.prepare(objects.stamp_new(rules.default(shape), self._clock()))
        self.store.write(NAMESPACES.resource, content, replaces=None)

    def _serve_crds(self) -> None:
        crds, _ = self.store.select(CRDS.resource)
        self._served.replace_custom([stored.content for stored in crds])
