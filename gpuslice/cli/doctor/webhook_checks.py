# SPDX-License-Identifier: Apache-2.0
"""Whether pods that ask for a share reach the webhook, and are admitted."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from gpuslice.cli.doctor.findings import Finding, Severity
from gpuslice.cli.doctor.snapshot import WEBHOOK_NAMESPACE, Json, Snapshot, namespace_of
from gpuslice.contract import names, pods

INSTALL: Final = "kubectl apply -f deploy/install.yaml"
NEEDED_ENTRIES: Final = ("pods.gpuslice.dev", "bindings.gpuslice.dev")
SOON: Final = timedelta(days=7)


def _hooks(snapshot: Snapshot) -> Iterator[tuple[str, Json]]:
    """Yield each of our webhooks with the configuration that it stands in."""
    for kind, found in (
        ("mutatingwebhookconfiguration", snapshot.mutating),
        ("validatingwebhookconfiguration", snapshot.validating),
    ):
        for configuration in found:
            for hook in configuration.get("webhooks") or ():
                yield f"{kind}/{pods.meta_of(configuration)['name']}", hook


def entries(snapshot: Snapshot) -> Iterator[Finding]:
    """The API server asks the webhook about pods and binds."""
    if snapshot.is_unreadable("mutating"):
        return
    there = {hook["name"]: (where, hook) for where, hook in _hooks(snapshot)}
    for name in NEEDED_ENTRIES:
        if name not in there:
            yield Finding(
                check="webhook-entries",
                subject=f"webhook/{name}",
                problem="no MutatingWebhookConfiguration has this entry: "
                + (
                    "pods that ask for a share stay as they are"
                    if name == NEEDED_ENTRIES[0]
                    else "no GPU is chosen when a pod is bound"
                ),
                fix=INSTALL,
            )
    resource = snapshot.settings.resource_name
    if NEEDED_ENTRIES[0] in there:
        where, hook = there[NEEDED_ENTRIES[0]]
        conditions = json.dumps(hook.get("matchConditions") or ())
        if conditions != "[]" and resource not in conditions:
            yield Finding(
                check="webhook-entries",
                subject=where,
                problem=f"its matchConditions don't name {resource}, the setting resourceName: "
                "pods that ask for it by hand are not seen",
                fix=f"put {resource} in the place of {names.SLICE_RESOURCE} in its matchConditions",
            )
    if NEEDED_ENTRIES[1] in there:
        where, hook = there[NEEDED_ENTRIES[1]]
        wanted = snapshot.settings.arbiter_failure_policy
        if hook.get("failurePolicy") != wanted:
            yield Finding(
                check="webhook-entries",
                subject=where,
                problem=f"failurePolicy of {NEEDED_ENTRIES[1]} is {hook.get('failurePolicy')}, "
                f"the setting arbiterFailurePolicy {wanted}",
                fix="make them equal; the API server goes by the webhook configuration",
                severity=Severity.WARNING,
            )


def trust(snapshot: Snapshot) -> Iterator[Finding]:
    """The API server trusts the certificate that the webhook serves."""
    leaf = _leaf(snapshot)
    place = namespace_of(snapshot.deployments, WEBHOOK_NAMESPACE)
    restart = f"kubectl -n {place} rollout restart deployment/gpuslice-webhook"
    for where, hook in _hooks(snapshot):
        bundle = (hook.get("clientConfig") or {}).get("caBundle")
        subject = f"{where}, {hook['name']}"
        if not bundle:
            yield Finding(
                check="webhook-trust",
                subject=subject,
                problem="caBundle is empty: the API server can't call the webhook",
                fix=f"{restart}: it writes its authority there within seconds; else see its log",
            )
        elif leaf is not None and not _verifies(bundle, leaf):
            yield Finding(
                check="webhook-trust",
                subject=subject,
                problem="caBundle doesn't verify the certificate that the webhook serves",
                fix=restart,
            )
    if leaf is not None and (left := leaf.not_valid_after_utc - snapshot.now) < SOON:
        yield Finding(
            check="webhook-trust",
            subject="secret/" + str(pods.meta_of(snapshot.secrets[0])["name"]),
            problem=f"the webhook's certificate {_ends(left, leaf.not_valid_after_utc)}",
            fix=restart,
            severity=Severity.ERROR if left < timedelta() else Severity.WARNING,
        )


def _ends(left: timedelta, until: datetime) -> str:
    return f"{'expired' if left < timedelta() else 'expires'} at {until:%Y-%m-%d %H:%M} UTC"


def _leaf(snapshot: Snapshot) -> x509.Certificate | None:
    """Return the served leaf, None where it isn't kept in a Secret that can be read."""
    for secret in snapshot.secrets:
        try:
            pem = base64.b64decode((secret.get("data") or {})["tls.crt"])
            return x509.load_pem_x509_certificate(pem)
        except (KeyError, ValueError, binascii.Error):
            return None
    return None


def _verifies(bundle: str, leaf: x509.Certificate) -> bool:
    try:
        authorities = x509.load_pem_x509_certificates(base64.b64decode(bundle))
    except (ValueError, binascii.Error):
        return False
    for authority in authorities:
        try:
            leaf.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def readiness(snapshot: Snapshot) -> Iterator[Finding]:
    """The webhook runs."""
    if snapshot.is_unreadable("deployments"):
        return
    if not snapshot.deployments:
        yield Finding(
            check="webhook-ready",
            subject="deployment/gpuslice-webhook",
            problem="there is no Deployment of the webhook",
            fix=INSTALL,
        )
    for deployment in snapshot.deployments:
        about = pods.meta_of(deployment)
        place = f"-n {about.get('namespace')}"
        # Scaled to none is as far from ready as none that is ready.
        wanted = max(1, pods.spec_of(deployment).get("replicas", 1))
        ready = (deployment.get("status") or {}).get("readyReplicas") or 0
        if ready < wanted:
            nothing = "" if ready else ": pods that ask for a share are refused"
            yield Finding(
                check="webhook-ready",
                subject=f"deployment/{about['name']}",
                problem=f"{ready} of {wanted} replicas are ready{nothing}",
                fix=f"kubectl {place} describe pods -l app.kubernetes.io/component=webhook; "
                f"kubectl {place} logs deployment/{about['name']}",
                severity=Severity.WARNING if ready else Severity.ERROR,
            )


def trial(snapshot: Snapshot) -> Iterator[Finding]:
    """A pod that asks for a share is admitted: tried, without storing it."""
    tried = snapshot.trial
    if tried is None or not snapshot.mutating:
        return
    if tried.error:
        yield Finding(
            check="admission",
            subject="pod (dry run)",
            problem=f"a pod with {names.FRACTION} is not admitted: {tried.error}",
            fix="mend what else is found here; then see the webhook's log",
        )
    elif tried.pod is not None and not _has_share(tried.pod, snapshot.settings.resource_name):
        yield Finding(
            check="admission",
            subject="pod (dry run)",
            problem=f"a pod with {names.FRACTION} passes unchanged: "
            f"no {snapshot.settings.resource_name} in its limits",
            fix="see webhook-entries; is this namespace among those that the entry excludes?",
        )


def _has_share(pod: Json, resource: str) -> bool:
    limits: list[Any] = [
        (each.get("resources") or {}).get("limits") or {} for each in pods.containers(pod)
    ]
    return names.SHARE_LABEL in pods.labels_of(pod) and any(resource in each for each in limits)
