# SPDX-License-Identifier: Apache-2.0
"""An installation that is well: deploy/install.yaml on the embedded API server.

Behind it is the webhook's own application, and two GPU nodes are as their agents leave them.
"""

from __future__ import annotations

import base64
import logging
import shutil
import ssl
import tempfile
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from werkzeug.serving import make_server

from deviceplugin import publication
from gpuslice.contract import gpunode, names
from gpuslice.contract.placement import Demand
from gpuslice.contract.shares import parse_share
from gpuslice.contract.slices import SliceRule
from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.resources import (
    GPU_NODES,
    GPU_SHARES,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Resource,
)
from gpuslice.runtime.settings import Settings
from gpuslice.sim.apiserver.kinds import BUILT_IN
from gpuslice.sim.apiserver.server import ApiServer
from webhook import certs
from webhook.app import Deciders, create_app
from webhook.arbiter import Verdict
from webhook.policies import Fleet
from webhook.standing import policy_of

ROOT = Path(__file__).parents[3]
MEMORY_MIB = 23034
RULE = SliceRule()
NODE_NAMES = ("node-a", "node-b")
DEPLOYMENTS = Resource(group="apps", plural="deployments", kind="Deployment")
DAEMON_SETS = Resource(group="apps", plural="daemonsets", kind="DaemonSet")


def _resource(body: Mapping[str, Any]) -> Resource:
    for kind in BUILT_IN:
        if (kind.api_version, kind.kind) == (body["apiVersion"], body["kind"]):
            return Resource(
                group=kind.group,
                version=kind.version,
                plural=kind.plural,
                kind=kind.kind,
                namespaced=kind.namespaced,
            )
    raise AssertionError(body["kind"])


def demand(text: str) -> Demand:
    share = parse_share(text)
    return Demand(share=share, slices=RULE.slices_of_share(share, [MEMORY_MIB]))


def _never(**_: Any) -> None:
    """Take nothing down."""


def _passed(_: Any) -> Verdict:
    raise AssertionError("nothing is bound here")


class Installation:
    """A cluster to look at; a test breaks one thing of it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gs-"))
        self.server = ApiServer(resolve_service=lambda *_: ("127.0.0.1", self._web.port)).start()
        self.kubeconfig = Path(self.server.kubeconfig(self.folder / "kubeconfig"))
        self.client = KubeClient(config.load(self.kubeconfig), component="tests")
        text = (ROOT / "deploy" / "install.yaml").read_text(encoding="utf-8")
        for body in yaml.safe_load_all(text):
            self.client.create(_resource(body), body)
        self._serve()
        self.status(DEPLOYMENTS, "gpuslice-webhook", {"readyReplicas": 2}, "gpuslice")
        for text in Settings().shares:
            self.client.create(GPU_SHARES, gpunode.gpu_share(demand(text)))
        for name in NODE_NAMES:
            self._join(name)

    def close(self) -> None:
        self._web.shutdown()
        self._web_thread.join()
        self._web.server_close()
        self.client.close()
        self.server.stop()
        shutil.rmtree(self.folder)

    def status(
        self, resource: Resource, name: str, status: Mapping[str, Any], namespace: str = ""
    ) -> None:
        self.client.patch(resource, name, {"status": status}, namespace=namespace, status=True)

    # --- the webhook

    def _serve(self) -> None:
        now = datetime.now(UTC)
        self.authority = certs.new_authority(now)
        dns_names = certs.service_names("gpuslice-webhook", "gpuslice")
        leaf = certs.new_leaf(self.authority, dns_names, now)
        pem = self.folder / "leaf.pem"
        pem.write_bytes(leaf.certificate_pem + leaf.key_pem)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pem)
        policy = policy_of(Settings(), Fleet(kinds_mib=(MEMORY_MIB,), most_gpus=1))
        app = create_app(
            Deciders(policy=lambda: policy, bind=_passed),
            record=_never,
            clock=time.monotonic,
            draining=threading.Event(),
        )
        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self._web = make_server("127.0.0.1", 0, app, threaded=True, ssl_context=context)
        self._web_thread = threading.Thread(target=self._web.serve_forever, args=(0.05,))
        self._web_thread.start()
        data = {"tls.crt": leaf.certificate_pem, "tls.key": leaf.key_pem}
        self.client.create(
            SECRETS,
            {
                "metadata": {
                    "name": "gpuslice-webhook-tls",
                    "namespace": "gpuslice",
                    "labels": {"app.kubernetes.io/part-of": "gpuslice"},
                },
                "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
            },
        )
        self.trust(self.authority.certificate_pem)

    def trust(self, authority_pem: bytes) -> None:
        """Put a caBundle into every entry."""
        bundle = base64.b64encode(authority_pem).decode()
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            found = self.client.get(resource, "gpuslice")
            for hook in found["webhooks"]:
                hook["clientConfig"]["caBundle"] = bundle
            self.client.replace(resource, found)

    # --- the nodes

    def _join(self, name: str) -> None:
        labels = {"gpuslice.dev/gpu-node": "true"}
        self.client.create(NODES, {"metadata": {"name": name, "labels": labels}})
        gpu = {
            "uuid": f"GPU-{name}",
            "index": 0,
            "product": "NVIDIA L4",
            "memoryMiB": MEMORY_MIB,
            "slices": 100,
            "healthy": True,
        }
        spec = {"mode": "time-slicing", "sliceBy": "fraction", "gpus": [gpu]}
        self.client.create(GPU_NODES, {"metadata": {"name": name}, "spec": spec})
        self.write(name, serving=True)
        place, plugin = "gpuslice-nodes", f"plugin-{name}"
        self.client.create(
            PODS,
            {
                "metadata": {
                    "name": plugin,
                    "namespace": place,
                    "labels": {
                        "app.kubernetes.io/part-of": "gpuslice",
                        "app.kubernetes.io/component": "device-plugin",
                    },
                },
                "spec": {"nodeName": name, "containers": [{"name": "p", "image": "gpuslice"}]},
            },
        )
        ready = [{"type": "Ready", "status": "True"}]
        self.status(PODS, plugin, {"phase": "Running", "conditions": ready}, place)

    def write(self, node: str, **status: Any) -> None:
        """Write a ledger's status, and let the Node follow it."""
        found = self.client.get(GPU_NODES, node)
        changed = {**found, "status": {"claims": [], **(found.get("status") or {}), **status}}
        self.client.replace(GPU_NODES, changed, status=True)
        self.follow(node)

    def follow(self, node: str) -> None:
        """Publish what the agent would."""
        found = self.client.get(GPU_NODES, node)
        ledger = gpunode.ledger_of(found)
        demands = [gpunode.demand_of(each) for each in self.client.list(GPU_SHARES)]
        resource = names.SLICE_RESOURCE
        patch = publication.node_patch(
            self.client.get(NODES, node),
            fits_wanted=publication.values(ledger, demands, (), resource),
            labels_wanted=publication.labels(ledger, "time-slicing"),
            ledger_version=found["metadata"]["resourceVersion"],
        )
        if patch:
            self.client.patch(NODES, node, patch, status=True)
        self.offer(node, {resource: "100"})

    def offer(self, node: str, resources: Mapping[str, str | None]) -> None:
        self.status(NODES, node, {"capacity": dict(resources), "allocatable": dict(resources)})


def claim(name: str, node: str, memory_mib: int = 11517, slices: int = 50) -> dict[str, Any]:
    """Return a claim of half a GPU, or of more, as it stands in a GpuNode."""
    return {
        "pod": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
        "container": "main",
        "share": "0.5",
        "fit": "0.5",
        "state": "Held",
        "shape": [{"gpu": f"GPU-{node}", "memoryMiB": memory_mib, "slices": slices}],
    }
