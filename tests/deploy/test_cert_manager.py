# SPDX-License-Identifier: Apache-2.0
"""The example for cert-manager fits the webhook that is deployed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from webhook import certs

DEPLOY = Path(__file__).parents[2] / "deploy"
EXAMPLE = DEPLOY / "examples" / "cert-manager"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def find(kind: str, name: str, path: Path) -> dict[str, Any]:
    (found,) = (
        each
        for each in documents(path)
        if each["kind"] == kind and each["metadata"]["name"] == name
    )
    return found


def test_the_leaf_is_for_the_name_that_the_api_server_calls() -> None:
    leaf = find("Certificate", "gpuslice-webhook", EXAMPLE / "certificate.yaml")
    service = find("Service", "gpuslice-webhook", DEPLOY / "manifests" / "40-webhook.yaml")
    names = certs.service_names(service["metadata"]["name"], service["metadata"]["namespace"])
    assert leaf["spec"]["dnsNames"] == list(names[:2])
    assert leaf["metadata"]["namespace"] == service["metadata"]["namespace"]


def test_every_issuer_and_secret_that_is_named_is_made() -> None:
    things = documents(EXAMPLE / "certificate.yaml")
    issuers = {each["metadata"]["name"] for each in things if each["kind"] == "Issuer"}
    secrets = {each["spec"]["secretName"] for each in things if each["kind"] == "Certificate"}
    for each in things:
        if each["kind"] == "Certificate":
            assert each["spec"]["issuerRef"]["name"] in issuers
        elif "ca" in each["spec"]:
            assert each["spec"]["ca"]["secretName"] in secrets


def test_the_pair_is_mounted_where_the_webhook_is_told_to_look() -> None:
    (patch,) = documents(EXAMPLE / "mount.yaml")
    spec = patch["spec"]["template"]["spec"]
    (container,), (volume,) = spec["containers"], spec["volumes"]
    deployed = find("Deployment", "gpuslice-webhook", DEPLOY / "manifests" / "40-webhook.yaml")
    (own,) = deployed["spec"]["template"]["spec"]["containers"]
    assert container["name"] == own["name"]
    assert container["args"][: len(own["args"])] == own["args"]
    (mount,) = container["volumeMounts"]
    assert mount["name"] == volume["name"]
    assert container["args"][-2:] == ["--cert-dir", mount["mountPath"]]
    leaf = find("Certificate", "gpuslice-webhook", EXAMPLE / "certificate.yaml")
    assert volume["secret"]["secretName"] == leaf["spec"]["secretName"]
