# SPDX-License-Identifier: Apache-2.0
"""Keeps the certificate good: renewed, trusted by the API server, and served by a new worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from gpuslice.runtime import logs
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import KubeError
from webhook import certs, trust
from webhook.certs import CertificateError, Leaf
from webhook.trust import SecretPlace, TrustError

log = logs.get(__name__)

LOOK_SECONDS: Final = 30.0
TROUBLE: Final = "the webhook's certificate can't be looked after; the present one is served on"
FIRST_LOOK_SECONDS: Final = 1.0
"""While there is no webhook configuration yet: an installation creates it a moment later."""


def now() -> datetime:
    """Return the time of certificates."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look at the certificate found."""

    expires: datetime
    changed: bool
    """Whether another pair is to be served than before."""
    complete: bool = True
    """Whether the API server has been told whom to trust."""


class OwnCertificate:
    """Mode ``self``: the pair is in a Secret, and our webhook configurations trust it."""

    def __init__(
        self,
        client: KubeClient,
        place: SecretPlace,
        folder: Path,
        clock: Callable[[], datetime] = now,
    ) -> None:
        """Keep where the pair is, and where the server reads it."""
        self._clock = clock
        self._client = client
        self._place = place
        self._folder = folder

    def look(self) -> Look:
        """Bring all in order.

        Raises:
            KubeError, TrustError, CertificateError: where that can't be done.
        """
        pair = trust.ensure_pair(self._client, self._place, self._clock())
        # Trust first: a server that shows a leaf before it is trusted can't be called.
        found = trust.ensure_bundles(
            self._client,
            pair.bundle_pem,
            is_current=lambda: trust.is_current(self._client, self._place, pair),
        )
        return Look(
            expires=certs.check(pair.leaf, self._clock()),
            changed=trust.write_files(self._folder, pair.leaf),
            complete=found > 0,
        )


class GivenCertificate:
    """Mode ``files``: somebody else writes the pair, cert-manager for one."""

    def __init__(self, folder: Path, served: Leaf | None = None) -> None:
        """Keep the folder, and the leaf that is served from it now."""
        self._folder = folder
        self._served = served

    def look(self) -> Look:
        """Read the folder again.

        Raises:
            CertificateError: where the new pair is no good: the old one stays.
        """
        leaf = trust.read_files(self._folder)
        expires = certs.check(leaf, now())
        changed = self._served not in (None, leaf)
        self._served = leaf
        return Look(expires=expires, changed=changed)


class Report(Protocol):
    """Where people are told."""

    def __call__(self, reason: str, message: str, *, warning: bool) -> object:
        """Say something about the certificate."""


class CertificateKeeper:
    """Looks again and again; one thread of the worker."""

    def __init__(
        self,
        certificate: OwnCertificate | GivenCertificate,
        *,
        tell: Callable[[datetime], object],
        serve_anew: Callable[[], object],
        report: Report,
        look_seconds: float = LOOK_SECONDS,
        retry_seconds: float = FIRST_LOOK_SECONDS,
    ) -> None:
        """Keep what to look at.

        Args:
            certificate: what to look at.
            tell: called with the time at which the certificate expires.
            serve_anew: called when another pair is to be served.
            report: called once for each trouble, and for each new certificate.
            look_seconds: between two looks.
            retry_seconds: before the first look after a failed one; the next ones wait longer.
        """
        self._certificate = certificate
        self._tell = tell
        self._serve_anew = serve_anew
        self._report = report
        self._look_seconds = look_seconds
        self._retry_seconds = retry_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="certificate", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _run(self) -> None:
        pause, retry = 0.0, self._retry_seconds
        problem = ""
        while not self._stopping.wait(pause):
            try:
                look = self._certificate.look()
            except (KubeError, TrustError, CertificateError) as error:
                if str(error) != problem:
                    log.warning("certificate_not_kept", error=str(error))
                    self._report("CertificateTrouble", f"{TROUBLE}: {error}", warning=True)
                problem = str(error)
                pause, retry = retry, min(2 * retry, self._look_seconds)
                continue
            problem, retry = "", self._retry_seconds
            pause = self._look_seconds if look.complete else self._retry_seconds
            self._tell(look.expires)
            if look.changed:
                log.info("certificate_changed", expires=look.expires.isoformat())
                message = f"a new certificate is served; it expires on {look.expires:%Y-%m-%d} UTC"
                self._report("CertificateChanged", message, warning=False)
                self._serve_anew()
