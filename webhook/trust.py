# SPDX-License-Identifier: Apache-2.0
"""Who trusts us: the key pair in its Secret, and the caBundle in our webhook configurations.

All replicas do the same at once. The Secret decides: whoever creates or replaces it first has
chosen, and the others read it.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import ConflictError, NotFoundError
from gpuslice.runtime.kube.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS
from webhook import certs
from webhook.certs import Authority, CertificateError, Leaf

log = logging.getLogger(__name__)

Json = Mapping[str, Any]

CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
SELECTOR: Final = "app.kubernetes.io/part-of=gpuslice"
_AUTHORITY: Final = ("ca.crt", "ca.key")
_TRIES: Final = 5


class TrustError(RuntimeError):
    """The Secret could be neither made nor read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A leaf, and the authority that the API server must trust for it."""

    authority: Authority
    leaf: Leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretPlace:
    """Where the key pair is kept, and what it is for."""

    namespace: str
    name: str
    service: str

    @property
    def dns_names(self) -> tuple[str, ...]:
        """What the leaf is for."""
        return certs.service_names(self.service, self.namespace)


def ensure_pair(client: KubeClient, place: SecretPlace, now: datetime) -> KeyPair:
    """Return the key pair of the Secret; make or renew it where need be.

    Raises:
        TrustError: where others change the Secret each time.
        KubeError: where the API server refuses or doesn't answer.
    """
    for _ in range(_TRIES):
        try:
            secret = client.get(SECRETS, place.name, namespace=place.namespace)
        except NotFoundError:
            secret = None
        pair = None if secret is None else _pair_of(secret)
        if pair is not None and _is_good(pair, place, now):
            return pair
        pair = _renewed(pair, place, now)
        wanted = _secret(place, pair)
        try:
            if secret is None:
                client.create(SECRETS, wanted)
            else:
                wanted["metadata"]["resourceVersion"] = secret["metadata"]["resourceVersion"]
                client.replace(SECRETS, wanted)
        except (ConflictError, NotFoundError):
            continue  # another replica was first: its pair is as good
        log.info("certificate_made", extra={"secret": f"{place.namespace}/{place.name}"})
        return pair
    raise TrustError(f"Secret {place.namespace}/{place.name} changed {_TRIES} times meanwhile")


def _is_good(pair: KeyPair, place: SecretPlace, now: datetime) -> bool:
    try:
        expiry = certs.check(pair.leaf, now, needs=place.dns_names[0])
        signed = certs.signed_by(pair.leaf, pair.authority.certificate_pem)
    except (CertificateError, ValueError):
        return False
    return signed and expiry - now > certs.RENEW_BEFORE


def _renewed(pair: KeyPair | None, place: SecretPlace, now: datetime) -> KeyPair:
    """Return a new leaf of the same authority, or all new where that can't sign any more."""
    if pair is not None:
        try:
            expiry = certs.check(
                Leaf(
                    certificate_pem=pair.authority.certificate_pem, key_pem=pair.authority.key_pem
                ),
                now,
            )
            if expiry - now > certs.LEAF_LIFE:
                leaf = certs.new_leaf(pair.authority, place.dns_names, now)
                return KeyPair(authority=pair.authority, leaf=leaf)
        except CertificateError as error:
            log.warning("authority_unusable", extra={"error": str(error)})
    authority = certs.new_authority(now)
    return KeyPair(authority=authority, leaf=certs.new_leaf(authority, place.dns_names, now))


def _pair_of(secret: Json) -> KeyPair | None:
    data = secret.get("data") or {}
    try:
        ca, ca_key, leaf, leaf_key = (
            base64.b64decode(data[name], validate=True)
            for name in (*_AUTHORITY, CERTIFICATE_FILE, KEY_FILE)
        )
    except (KeyError, TypeError, binascii.Error):
        return None
    return KeyPair(
        authority=Authority(certificate_pem=ca, key_pem=ca_key),
        leaf=Leaf(certificate_pem=leaf, key_pem=leaf_key),
    )


def _secret(place: SecretPlace, pair: KeyPair) -> dict[str, Any]:
    ca, ca_key = _AUTHORITY
    content = {
        ca: pair.authority.certificate_pem,
        ca_key: pair.authority.key_pem,
        CERTIFICATE_FILE: pair.leaf.certificate_pem,
        KEY_FILE: pair.leaf.key_pem,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {
            "name": place.name,
            "namespace": place.namespace,
            "labels": {"app.kubernetes.io/part-of": "gpuslice"},
        },
        "data": {name: base64.b64encode(pem).decode("ascii") for name, pem in content.items()},
    }


def ensure_bundles(client: KubeClient, authority_pem: bytes) -> int:
    """Have the API server trust an authority for all our webhooks; return how many there are.

    Raises:
        KubeError: where the API server refuses or doesn't answer.
    """
    bundle = base64.b64encode(authority_pem).decode("ascii")
    found = 0
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        for configuration in client.list(resource, labels=SELECTOR):
            operations: list[dict[str, Any]] = []
            for index, webhook in enumerate(configuration.get("webhooks") or ()):
                found += 1
                if (webhook.get("clientConfig") or {}).get("caBundle") == bundle:
                    continue
                path = f"/webhooks/{index}"
                # The test holds off a list whose order changed in between.
                operations += [
                    {"op": "test", "path": f"{path}/name", "value": webhook["name"]},
                    {"op": "add", "path": f"{path}/clientConfig/caBundle", "value": bundle},
                ]
            if operations:
                name = configuration["metadata"]["name"]
                client.patch(resource, name, operations, kind="json")
                log.info("ca_bundle_set", extra={"configuration": name, "kind": resource.kind})
    return found


def write_files(folder: Path, leaf: Leaf) -> bool:
    """Write a leaf where the server reads it; return whether it is another than before."""
    changed = False
    for name, pem in ((KEY_FILE, leaf.key_pem), (CERTIFICATE_FILE, leaf.certificate_pem)):
        path = folder / name
        if path.is_file() and path.read_bytes() == pem:
            continue
        part = path.with_suffix(".part")
        part.touch(mode=0o600)
        part.write_bytes(pem)
        part.replace(path)
        changed = True
    return changed


def read_files(folder: Path) -> Leaf:
    """Return the leaf in a folder.

    Raises:
        CertificateError: where there is none.
    """
    try:
        return Leaf(
            certificate_pem=(folder / CERTIFICATE_FILE).read_bytes(),
            key_pem=(folder / KEY_FILE).read_bytes(),
        )
    except OSError as error:
        raise CertificateError(f"{error.filename}: {error.strerror}") from error
