# SPDX-License-Identifier: Apache-2.0
"""Certificates of our own: an authority and a leaf, as PEM."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE: Final = timedelta(days=3650)
LEAF_LIFE: Final = timedelta(days=90)
RENEW_BEFORE: Final = timedelta(days=30)
"""A leaf with less left is replaced."""
BACKDATE: Final = timedelta(hours=1)
"""Clocks of a cluster differ."""


class CertificateError(ValueError):
    """A key pair can't be served: it doesn't match, has expired, or is for other names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A certificate authority of our own."""

    certificate_pem: bytes
    key_pem: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """What the server shows."""

    certificate_pem: bytes
    key_pem: bytes


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """Return what the API server may call us by: the service, or this machine in a trial."""
    return (
        f"{service}.{namespace}.svc",
        f"{service}.{namespace}.svc.cluster.local",
        service,
        "localhost",
        "127.0.0.1",
        "::1",
    )


def new_authority(now: datetime) -> Authority:
    """Make an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    # The time in the name keeps an old and a new authority apart while both are trusted.
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "gpuslice"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"gpuslice webhook {now:%Y-%m-%d %H:%M:%S}"),
        ]
    )
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate_pem=_pem(certificate), key_pem=_key_pem(key))


def new_leaf(authority: Authority, names: Sequence[str], now: datetime) -> Leaf:
    """Make a leaf for DNS names and IP addresses, signed by an authority."""
    issuer = x509.load_pem_x509_certificate(authority.certificate_pem)
    issuer_key = serialization.load_pem_private_key(authority.key_pem, password=None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise CertificateError("the authority's key is not an elliptic curve's")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(min(now + LEAF_LIFE, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name(each) for each in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA256())
    )
    return Leaf(certificate_pem=_pem(certificate), key_pem=_key_pem(key))


def check(leaf: Leaf, now: datetime, *, needs: str | None = None) -> datetime:
    """Return when a leaf expires.

    Args:
        leaf: the pair to be served.
        now: the time of the check.
        needs: a DNS name that it must be for, None for any.

    Raises:
        CertificateError: where the pair can't be served.
    """
    try:
        certificate = x509.load_pem_x509_certificate(leaf.certificate_pem)
        key = serialization.load_pem_private_key(leaf.key_pem, password=None)
    except (ValueError, TypeError) as error:
        raise CertificateError(f"certificate or key can't be read: {error}") from error
    if _public(certificate.public_key()) != _public(key.public_key()):
        raise CertificateError("the key is not the certificate's")
    expiry = certificate.not_valid_after_utc
    if now >= expiry:
        raise CertificateError(f"the certificate expired on {expiry:%Y-%m-%d %H:%M} UTC")
    if needs is not None and needs not in _dns_names(certificate):
        raise CertificateError(f"the certificate is not for {needs}")
    return expiry


def signed_by(leaf: Leaf, authority_pem: bytes) -> bool:
    """Whether one of these authorities signed a leaf."""
    certificate = x509.load_pem_x509_certificate(leaf.certificate_pem)
    for authority in x509.load_pem_x509_certificates(authority_pem):
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _dns_names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return found.value.get_values_for_type(x509.DNSName)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _public(key: object) -> bytes:
    encoded = key.public_bytes(  # type: ignore[attr-defined]  # every kind of key has it
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert isinstance(encoded, bytes)
    return encoded
