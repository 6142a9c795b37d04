# SPDX-License-Identifier: Apache-2.0
"""Reading kubeconfig files: one, or several whose lists are merged, the first of a name winning.

Source: kubernetes.io, Organizing Cluster Access Using kubeconfig Files.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from gpuslice.runtime.kube.credentials import (
    NO_TOKEN,
    TokenFile,
    TokenProgram,
    TokenSource,
    fixed,
)
from gpuslice.runtime.kube.endpoint import Cluster
from gpuslice.runtime.kube.errors import ConfigError

_NOBODY: Final[Mapping[str, Any]] = {}
_UNSUPPORTED: Final = {
    "auth-provider": "auth-provider was removed from Kubernetes: use exec",
    "username": "basic authentication was removed from Kubernetes: use a token",
    "as": "acting as another user (as) is not supported",
}


def read(paths: tuple[Path, ...], *, context: str = "") -> Cluster:
    """Return the cluster that a context of these files names.

    Raises:
        ConfigError: naming file, entry and what is missing.
    """
    files = [(path, _load(path)) for path in paths if path.is_file()]
    where = ", ".join(map(str, paths))
    if not files:
        raise ConfigError(f"there is no kubeconfig at {where}")
    chosen = context or next(
        (content["current-context"] for _, content in files if content.get("current-context")), ""
    )
    if not chosen:
        raise ConfigError(f"{where}: current-context is not set; name a context")
    folder, about = _entry(files, "context", chosen, where)
    folder, cluster = _entry(files, "cluster", about.get("cluster", ""), where)
    user_folder, user = folder, _NOBODY
    if about.get("user"):
        user_folder, user = _entry(files, "user", about["user"], where)
    for field, why in _UNSUPPORTED.items():
        if user.get(field):
            raise ConfigError(f"{where}: user {about['user']!r}: {why}")
    if cluster.get("proxy-url"):
        raise ConfigError(f"{where}: cluster {about['cluster']!r}: proxy-url is not supported")
    if not cluster.get("server"):
        raise ConfigError(f"{where}: cluster {about['cluster']!r} has no server")
    certificate_pem = _data(user, "client-certificate-data", where)
    return Cluster(
        server=cluster["server"].rstrip("/"),
        namespace=about.get("namespace") or "default",
        token=_token(user, user_folder),
        ca_file=_file(cluster, "certificate-authority", folder),
        ca_pem=_data(cluster, "certificate-authority-data", where),
        certificate_file=None
        if certificate_pem
        else _file(user, "client-certificate", user_folder),
        key_file=_file(user, "client-key", user_folder),
        certificate_pem=certificate_pem,
        key_pem=_data(user, "client-key-data", where) or _read_key(user, user_folder, where),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        server_name=cluster.get("tls-server-name") or "",
    )


def _load(path: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as err:
        raise ConfigError(f"the kubeconfig {path} can't be read: {err}") from err
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"the kubeconfig {path} is no mapping of YAML")
    return content


def _named(content: Mapping[str, Any], sort: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for each in content.get(f"{sort}s") or ():
        yield each.get("name", ""), each.get(sort) or {}


def _entry(
    files: list[tuple[Path, Mapping[str, Any]]], sort: str, name: str, where: str
) -> tuple[Path, Mapping[str, Any]]:
    """Find an entry, and the folder that its relative paths start from."""
    known = []
    for path, content in files:
        for each, entry in _named(content, sort):
            if each == name:
                return path.parent, entry
            known.append(each)
    raise ConfigError(f"{where}: there is no {sort} {name!r}; there are: {', '.join(known) or '-'}")


def _file(entry: Mapping[str, Any], field: str, folder: Path) -> Path | None:
    return folder / entry[field] if entry.get(field) else None


def _data(entry: Mapping[str, Any], field: str, where: str) -> bytes:
    try:
        return base64.b64decode(entry.get(field) or "", validate=True)
    except (binascii.Error, ValueError) as err:
        raise ConfigError(f"{where}: {field} is not base64") from err


def _read_key(user: Mapping[str, Any], folder: Path, where: str) -> bytes:
    """Read a key from its file where the certificate beside it stands inline."""
    path = _file(user, "client-key", folder)
    if path is None or not user.get("client-certificate-data"):
        return b""
    try:
        return path.read_bytes()
    except OSError as err:
        raise ConfigError(f"{where}: client-key: {err}") from err


def _token(user: Mapping[str, Any], folder: Path) -> TokenSource:
    if path := _file(user, "tokenFile", folder):
        return TokenFile(path)
    if user.get("token"):
        return fixed(user["token"])
    if program := user.get("exec"):
        return TokenProgram(
            [_program(program["command"], folder), *(program.get("args") or ())],
            api_version=program.get("apiVersion", ""),
            environment={each["name"]: each["value"] for each in program.get("env") or ()},
            install_hint=program.get("installHint") or "",
        )
    return NO_TOKEN


def _program(command: str, folder: Path) -> str:
    """Resolve a relative path from the kubeconfig's folder; a bare name is looked for in PATH."""
    return str(folder / command) if "/" in command and not command.startswith("/") else command
