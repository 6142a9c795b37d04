# SPDX-License-Identifier: Apache-2.0
"""Who trusts us: the key pair in its Secret, and the caBundle in our webhook configurations.

All replicas do the same at once. The Secret decides: whoever creates or replaces it first has
chosen, and the others read it.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import ConflictError, InvalidError, NotFoundError
from gpuslice.runtime.kube.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS
from webhook import certs, rotation
from webhook.certs import Authority, CertificateError, Leaf
from webhook.rotation import KeyPair

log = logging.getLogger(__name__)

Json = Mapping[str, Any]

CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
SELECTOR: Final = "app.kubernetes.io/part-of=gpuslice"
SINCE_ANNOTATION: Final = "gpuslice.dev/rotation-since"
_AUTHORITY: Final = ("ca.crt", "ca.key")
_LEAF: Final = (CERTIFICATE_FILE, KEY_FILE)
_COMING: Final = ("coming-ca.crt", "coming-ca.key")
_PARTING: Final = "parting-ca.crt"
_TRIES: Final = 5


class TrustError(RuntimeError):
    """The Secret could be neither made nor read."""


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
    """Return the key pair of the Secret; take the step of its rotation that is due.

    Raises:
        TrustError: where others change the Secret each time.
        KubeError: where the API server refuses or doesn't answer.
    """
    for _ in range(_TRIES):
        try:
            secret = client.get(SECRETS, place.name, namespace=place.namespace)
        except NotFoundError:
            secret = None
        present = None if secret is None else _pair_of(secret)
        pair = rotation.renewed(present, place.dns_names, now)
        if pair == present:
            return pair
        wanted = _secret(place, pair)
        try:
            if secret is None:
                client.create(SECRETS, wanted)
            else:
                wanted["metadata"]["resourceVersion"] = secret["metadata"]["resourceVersion"]
                wanted["type"] = secret.get("type") or wanted["type"]  # it can't be changed
                client.replace(SECRETS, wanted)
        except (ConflictError, NotFoundError):
            continue  # another replica was first: its pair is as good
        log.info(
            "certificate_made",
            extra={
                "secret": f"{place.namespace}/{place.name}",
                "coming": pair.coming is not None,
                "parting": bool(pair.parting_pem),
            },
        )
        return pair
    raise TrustError(f"Secret {place.namespace}/{place.name} changed {_TRIES} times meanwhile")


def is_current(client: KubeClient, place: SecretPlace, pair: KeyPair) -> bool:
    """Whether the Secret still has this pair."""
    try:
        secret = client.get(SECRETS, place.name, namespace=place.namespace)
    except NotFoundError:
        return False
    return _pair_of(secret) == pair


def _pair_of(secret: Json) -> KeyPair | None:
    authority, leaf = (_read(secret, *files) for files in (_AUTHORITY, _LEAF))
    if authority is None or leaf is None:
        return None
    coming, parting = _read(secret, *_COMING), _read(secret, _PARTING)
    since = ((secret.get("metadata") or {}).get("annotations") or {}).get(SINCE_ANNOTATION)
    return KeyPair(
        authority=Authority(certificate_pem=authority[0], key_pem=authority[1]),
        leaf=Leaf(certificate_pem=leaf[0], key_pem=leaf[1]),
        coming=None if coming is None else Authority(certificate_pem=coming[0], key_pem=coming[1]),
        parting_pem=b"" if parting is None else parting[0],
        since=_time_of(since),
    )


def _read(secret: Json, *names: str) -> tuple[bytes, ...] | None:
    data = secret.get("data") or {}
    try:
        return tuple(base64.b64decode(data[name], validate=True) for name in names)
    except (KeyError, TypeError, binascii.Error):
        return None


def _time_of(text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def _secret(place: SecretPlace, pair: KeyPair) -> dict[str, Any]:
    content = {
        _AUTHORITY[0]: pair.authority.certificate_pem,
        _AUTHORITY[1]: pair.authority.key_pem,
        CERTIFICATE_FILE: pair.leaf.certificate_pem,
        KEY_FILE: pair.leaf.key_pem,
    }
    if pair.coming is not None:
        content[_COMING[0]] = pair.coming.certificate_pem
        content[_COMING[1]] = pair.coming.key_pem
    if pair.parting_pem:
        content[_PARTING] = pair.parting_pem
    since = {} if pair.since is None else {SINCE_ANNOTATION: pair.since.isoformat()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {
            "name": place.name,
            "namespace": place.namespace,
            "labels": {"app.kubernetes.io/part-of": "gpuslice"},
            "annotations": since,
        },
        "data": {name: base64.b64encode(pem).decode("ascii") for name, pem in content.items()},
    }


def ensure_bundles(
    client: KubeClient, bundle_pem: bytes, *, is_current: Callable[[], bool] = lambda: True
) -> int:
    """Have the API server trust authorities for all our webhooks; return how many there are.

    Args:
        client: asks and writes.
        bundle_pem: the authorities' certificates.
        is_current: whether that is the bundle still. Asked between reading a configuration and
            writing it, and the write is for the version that was read: so a replica that slept in
            between never takes back what another one wrote.

    Returns:
        The number of webhooks that trust the bundle; 0 also where others changed something
        meanwhile, and another look is due.

    Raises:
        KubeError: where the API server refuses or doesn't answer.
    """
    bundle = base64.b64encode(bundle_pem).decode("ascii")
    found = 0
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        for configuration in client.list(resource, labels=SELECTOR):
            webhooks = configuration.get("webhooks") or ()
            found += len(webhooks)
            about = configuration["metadata"]
            operations: list[dict[str, Any]] = [
                {
                    "op": "add",
                    "path": f"/webhooks/{index}/clientConfig/caBundle",
                    "value": bundle,
                }
                for index, webhook in enumerate(webhooks)
                if (webhook.get("clientConfig") or {}).get("caBundle") != bundle
            ]
            if not operations:
                continue
            if not is_current():
                return 0
            version = about["resourceVersion"]
            test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
            try:
                client.patch(resource, about["name"], [test, *operations], kind="json")
            except (ConflictError, InvalidError, NotFoundError):
                return 0
            log.info("ca_bundle_set", extra={"configuration": about["name"], "kind": resource.kind})
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
