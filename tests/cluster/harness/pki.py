# SPDX-License-Identifier: Apache-2.0
"""The cluster's certificate authority, its certificates and kubeconfigs."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_HOUR = dt.timedelta(hours=1)


def _name(common_name: str, organization: str | None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization is not None:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    certificate: Path
    key: Path


class Authority:
    """Signs for everyone in the cluster; a user is who the certificate's subject says."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("cluster-ca", None)
        certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / "ca.crt"
        self.key = folder / "ca.key"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(self.key, self._key)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _HOUR)
            .not_valid_after(now + 30 * 24 * _HOUR)
        )

    def issue(
        self,
        file: str,
        common_name: str,
        *,
        organization: str | None = None,
        names: Sequence[str] = (),
    ) -> KeyPair:
        """Make a certificate for a client and, with `names`, for a server at these addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = self._builder(_name(common_name, organization), key.public_key()).add_extension(
            x509.ExtendedKeyUsage(usages), critical=False
        )
        if names:
            alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        pair = KeyPair(certificate=self._folder / f"{file}.crt", key=self._folder / f"{file}.key")
        pair.certificate.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        _write_key(pair.key, key)
        return pair

    def service_account_keys(self) -> tuple[Path, Path]:
        """The keys that sign and check ServiceAccount tokens: private, public."""
        key = ec.generate_private_key(ec.SECP256R1())
        private, public = self._folder / "sa.key", self._folder / "sa.pub"
        # kube-apiserver reads a private EC key only in its traditional form.
        private.touch(mode=0o600)
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        public.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        return private, public

    def kubeconfig(
        self, path: Path, *, server: str, user: str, organization: str | None = None
    ) -> Path:
        """Write a kubeconfig with a new certificate for this user, everything inline."""
        pair = self.issue(path.stem, user, organization=organization)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "gpuslice",
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": _base64(self.certificate),
                    },
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": _base64(pair.certificate),
                        "client-key-data": _base64(pair.key),
                    },
                }
            ],
            "contexts": [{"name": "gpuslice", "context": {"cluster": "gpuslice", "user": user}}],
            "current-context": "gpuslice",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=1))
        return path


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
