# SPDX-License-Identifier: Apache-2.0
"""How an authority and its leaf are replaced without a moment in which nobody trusts the server.

A new authority is trusted before it signs, and the old one for as long as anybody may still show
what it signed:

1. one authority,
2. a coming one beside it, which signs nothing yet,
3. the coming one signs, and the parting one is trusted still,
1. one authority.

Every replica takes whichever step is due; the Secret lets one of them through. Each step waits
until what the one before it wrote has reached all replicas and API servers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from webhook import certs
from webhook.certs import Authority, CertificateError, Leaf

AUTHORITY_RENEW_BEFORE: Final = timedelta(days=365)
"""Far more than a leaf lives: no leaf is cut short by its authority's end."""
SPREAD: Final = timedelta(minutes=10)
"""Before a coming authority signs: replicas look twice a minute, API servers learn in seconds."""
OVERLAP: Final = timedelta(days=1)
"""Before a parting authority is forgotten: a replica that was cut off has read its new leaf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A leaf, and the authorities that the API server must trust meanwhile."""

    authority: Authority
    """Signs leaves."""
    leaf: Leaf
    coming: Authority | None = None
    """Is trusted, and signs as soon as that is known everywhere."""
    parting_pem: bytes = b""
    """The certificate of the authority before this one: trusted still."""
    since: datetime | None = None
    """When the last step was taken; None outside of a rotation."""

    @property
    def bundle_pem(self) -> bytes:
        """The certificates of all authorities to be trusted."""
        coming = b"" if self.coming is None else self.coming.certificate_pem
        return self.authority.certificate_pem + coming + self.parting_pem


def renewed(pair: KeyPair | None, names: Sequence[str], now: datetime) -> KeyPair:
    """Return what a pair should be by now: itself where nothing is due.

    Args:
        pair: as it is, None where there is none that can be read.
        names: DNS names and addresses of the leaf, the one that counts first.
        now: the time of the look.
    """
    if pair is None:
        return _fresh(names, now)
    left = _time_left(pair.authority, now)
    if pair.coming is not None and _time_left(pair.coming, now) is None:
        pair = dataclasses.replace(pair, coming=None, since=None)  # it can't sign: begin again
    if pair.coming is not None and pair.since is None:
        pair = dataclasses.replace(pair, since=now)
    if pair.coming is not None and (left is None or _is_over(SPREAD, pair, now)):
        return KeyPair(
            authority=pair.coming,
            leaf=certs.new_leaf(pair.coming, names, now),
            parting_pem=pair.authority.certificate_pem if left is not None else b"",
            since=now,
        )
    if left is None:
        return _fresh(names, now)
    if pair.parting_pem and _is_over(OVERLAP, pair, now):
        pair = dataclasses.replace(pair, parting_pem=b"", since=None)
    if left < AUTHORITY_RENEW_BEFORE and pair.coming is None and not pair.parting_pem:
        pair = dataclasses.replace(pair, coming=certs.new_authority(now), since=now)
    if not _is_good(pair, names, now):
        pair = dataclasses.replace(pair, leaf=certs.new_leaf(pair.authority, names, now))
    return pair


def _is_over(time: timedelta, pair: KeyPair, now: datetime) -> bool:
    return pair.since is None or now - pair.since >= time


def _fresh(names: Sequence[str], now: datetime) -> KeyPair:
    authority = certs.new_authority(now)
    return KeyPair(authority=authority, leaf=certs.new_leaf(authority, names, now))


def _time_left(authority: Authority, now: datetime) -> timedelta | None:
    """Return for how long an authority can sign, None where it can't."""
    pair = Leaf(certificate_pem=authority.certificate_pem, key_pem=authority.key_pem)
    try:
        return certs.check(pair, now) - now
    except CertificateError:
        return None


def _is_good(pair: KeyPair, names: Sequence[str], now: datetime) -> bool:
    try:
        expiry = certs.check(pair.leaf, now, needs=names[0])
        signed = certs.signed_by(pair.leaf, pair.authority.certificate_pem)
    except (CertificateError, ValueError):
        return False
    return signed and expiry - now > certs.RENEW_BEFORE
