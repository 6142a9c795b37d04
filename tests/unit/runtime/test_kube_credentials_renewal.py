# SPDX-License-Identifier: Apache-2.0
"""Tokens that are renewed while the process runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuslice.runtime.kube.credentials import REREAD_SECONDS, TokenFile, TokenProgram
from gpuslice.runtime.kube.errors import ConfigError

VERSION = "client.authentication.k8s.io/v1"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_renewed_file_is_read_within_a_minute(tmp_path: Path) -> None:
    """Kubelet renews it in place; nobody tells us."""
    path, clock = tmp_path / "token", Clock()
    path.write_text("old\n")
    token = TokenFile(path, clock=clock)
    assert token() == "old"
    path.write_text("new\n")
    assert token() == "old"
    clock.now = REREAD_SECONDS
    assert token() == "new"


def test_a_fresh_one_is_read_at_once(tmp_path: Path) -> None:
    """After a 401 the file is newer than what we hold."""
    path = tmp_path / "token"
    path.write_text("old")
    token = TokenFile(path, clock=Clock())
    token()
    path.write_text("new")
    assert token(fresh=True) == "new"


@pytest.mark.parametrize("content", [None, ""], ids=["gone", "empty"])
def test_the_old_token_serves_while_the_file_is_away(tmp_path: Path, content: str | None) -> None:
    """A volume that is being swapped is no reason to fail."""
    path = tmp_path / "token"
    path.write_text("old")
    token = TokenFile(path, clock=Clock())
    token()
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert token(fresh=True) == "old"


def test_a_file_that_never_was_is_named(tmp_path: Path) -> None:
    """There is no old token to fall back on."""
    with pytest.raises(ConfigError, match=str(tmp_path / "none")):
        TokenFile(tmp_path / "none")()


def program(folder: Path, text: str, **more: str) -> TokenProgram:
    script = folder / "program.py"
    script.write_text(text)
    return TokenProgram(
        [sys.executable, str(script)], api_version=VERSION, environment=more, now=lambda: 1000.0
    )


def test_a_program_gives_its_token_and_is_run_once(tmp_path: Path) -> None:
    """Until the token's time is over, or a fresh one is asked for."""
    counter = tmp_path / "runs"
    text = (
        "import json, os, pathlib\n"
        "assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'\n"
        f"p = pathlib.Path({str(counter)!r})\n"
        "n = int(p.read_text()) + 1 if p.exists() else 1\n"
        "p.write_text(str(n))\n"
        "print(json.dumps({'status': {'token': os.environ['WHO'] + str(n),"
        " 'expirationTimestamp': '2100-01-01T00:00:00Z'}}))\n"
    )
    token = program(tmp_path, text, WHO="me")
    assert [token(), token(), token(fresh=True)] == ["me1", "me1", "me2"]


def test_a_token_that_is_over_is_asked_for_anew(tmp_path: Path) -> None:
    """A minute early, so that it lasts for the request."""
    text = (
        "import json, os\n"
        "print(json.dumps({'status': {'token': str(os.getpid()),"
        " 'expirationTimestamp': '1970-01-01T00:17:00Z'}}))\n"
    )
    token = program(tmp_path, text)
    assert token() != token()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("import sys; sys.exit('log in first')", "failed: log in first", id="fails"),
        pytest.param("print('hello')", "gave no credential", id="nonsense"),
        pytest.param(
            'print(\'{"status": {"clientCertificateData": "x"}}\')',
            "only tokens are supported",
            id="certificate",
        ),
    ],
)
def test_a_program_that_gives_no_token_says_why(tmp_path: Path, text: str, words: str) -> None:
    """Its own words are passed on."""
    with pytest.raises(ConfigError, match=words):
        program(tmp_path, text)()


def test_a_program_that_is_not_installed_is_named_with_its_hint() -> None:
    """The kubeconfig's author wrote the hint for this moment."""
    token = TokenProgram(
        ["no-such-program"], api_version=VERSION, environment={}, install_hint="get it from x"
    )
    with pytest.raises(ConfigError, match=r"no-such-program is not installed; get it from x"):
        token()
