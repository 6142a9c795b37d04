# SPDX-License-Identifier: Apache-2.0
"""One API server, as one user reaches it: address, credentials, certificates."""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpuslice.runtime.kube.credentials import NO_TOKEN, TokenSource
from gpuslice.runtime.kube.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One API server, as one user reaches it."""

    server: str
    """e.g. ``https://10.0.0.1:6443``."""
    namespace: str = "default"
    """The user's own, or the pod's."""
    token: TokenSource = NO_TOKEN
    ca_file: Path | None = None
    ca_pem: bytes = b""
    """Instead of a file. Neither: the system's authorities."""
    certificate_file: Path | None = None
    key_file: Path | None = None
    certificate_pem: bytes = b""
    key_pem: bytes = b""
    insecure: bool = False
    """Don't check the server's certificate."""
    server_name: str = ""
    """What the certificate must be for, where that is not the address."""

    def tls(self) -> ssl.SSLContext | None:
        """Return a context with the files as they are now, None for plain HTTP.

        Raises:
            ConfigError: where a file is missing or holds no certificate.
        """
        if not self.server.startswith("https://"):
            return None
        try:
            context = ssl.create_default_context(
                cafile=str(self.ca_file) if self.ca_file else None,
                cadata=self.ca_pem.decode("ascii") if self.ca_pem else None,
            )
            # Python 3.13 demands extensions that the CAs of many clusters lack.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if self.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self._load_client_certificate(context)
        except (OSError, ValueError) as err:
            raise ConfigError(f"the certificates for {self.server} can't be used: {err}") from err
        return context

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file)
        elif self.certificate_pem:
            # OpenSSL reads files only; this one is ours alone and gone at once.
            with tempfile.NamedTemporaryFile() as file:
                file.write(self.certificate_pem.rstrip() + b"\n" + self.key_pem)
                file.flush()
                context.load_cert_chain(file.name)
