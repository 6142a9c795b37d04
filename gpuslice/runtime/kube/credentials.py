# SPDX-License-Identifier: Apache-2.0
"""Who a client says it is: bearer tokens, fixed, in a file that is renewed, or from a program."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

from gpuslice.runtime.kube.errors import ConfigError


class TokenSource(Protocol):
    """Gives the token of the next request, empty for none."""

    def __call__(self, *, fresh: bool = False) -> str:
        """Return the token; `fresh` asks for a new one, after a 401."""


REREAD_SECONDS: Final = 60.0
"""kubelet renews a token at 80 % of its life, an hour at the least: a minute is early enough."""
_EXEC_TIMEOUT_SECONDS: Final = 60.0
_EXPIRY_MARGIN_SECONDS: Final = 60.0
_EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


def fixed(token: str) -> TokenSource:
    """Return a source of one token for ever."""

    def source(*, fresh: bool = False) -> str:  # noqa: ARG001 - the shape of TokenSource
        return token

    return source


NO_TOKEN: Final = fixed("")


class TokenFile:
    """A file whose token is renewed in place, as kubelet does for service accounts."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._guard = threading.Lock()
        self._token = ""
        self._read_at: float | None = None

    def __call__(self, *, fresh: bool = False) -> str:
        with self._guard:
            now = self._clock()
            if fresh or self._read_at is None or now - self._read_at >= REREAD_SECONDS:
                self._token = self._read()
                self._read_at = now
            return self._token

    def _read(self) -> str:
        try:
            return self._path.read_text(encoding="ascii").strip() or self._token
        except (OSError, ValueError) as err:
            # Half a renewal, or a volume just being swapped: the old token is good for a while.
            if self._token:
                return self._token
            raise ConfigError(f"the token file {self._path} can't be read: {err}") from err


class TokenProgram:
    """A program that prints an ExecCredential, as kubeconfigs of managed clusters name one.

    Source: kubernetes.io, Authenticating, client-go credential plugins.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        api_version: str,
        environment: Mapping[str, str],
        install_hint: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        if api_version not in _EXEC_VERSIONS:
            raise ConfigError(
                f"users.user.exec.apiVersion {api_version!r} is not known; "
                f"allowed are {', '.join(_EXEC_VERSIONS)}"
            )
        self._command = tuple(command)
        self._environment = dict(environment)
        self._environment["KUBERNETES_EXEC_INFO"] = json.dumps(
            {"apiVersion": api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
        )
        self._install_hint = install_hint
        self._now = now
        self._guard = threading.Lock()
        self._token = ""
        self._expires_at: float | None = None

    def __call__(self, *, fresh: bool = False) -> str:
        with self._guard:
            is_over = self._expires_at is not None and self._now() >= self._expires_at
            if fresh or is_over or not self._token:
                self._token, self._expires_at = self._run()
            return self._token

    def _run(self) -> tuple[str, float | None]:
        program = self._command[0]
        try:
            done = subprocess.run(  # noqa: S603 - the user's kubeconfig names it, as for kubectl
                self._command,
                env=os.environ | self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_EXEC_TIMEOUT_SECONDS,
                check=True,
            )
            status: dict[str, Any] = json.loads(done.stdout)["status"]
        except FileNotFoundError as err:
            hint = f"; {self._install_hint.strip()}" if self._install_hint else ""
            raise ConfigError(f"the credential program {program} is not installed{hint}") from err
        except subprocess.CalledProcessError as err:
            said = err.stderr.decode(errors="replace").strip()[-300:]
            raise ConfigError(f"the credential program {program} failed: {said}") from err
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as err:
            raise ConfigError(f"the credential program {program} gave no credential") from err
        token = status.get("token")
        if not token:
            raise ConfigError(
                f"the credential program {program} gave a client certificate; only tokens are "
                "supported here: use a kubeconfig with client-certificate instead"
            )
        until = status.get("expirationTimestamp")
        expires_at = None
        if until:
            expires_at = datetime.fromisoformat(until).timestamp() - _EXPIRY_MARGIN_SECONDS
        return str(token), expires_at
