# SPDX-License-Identifier: Apache-2.0
"""Finding the cluster: which of the places wins, and what is said where there is none."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.errors import ConfigError


def kubeconfig(path: Path, *, server: str = "https://one:6443", **user: Any) -> Path:
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "main",
                "contexts": [
                    {"name": "main", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
                    {"name": "other", "context": {"cluster": "d", "user": "u"}},
                ],
                "clusters": [
                    {"name": "c", "cluster": {"server": server}},
                    {"name": "d", "cluster": {"server": "https://two:6443"}},
                ],
                "users": [{"name": "u", "user": user or {"token": "t"}}],
            }
        )
    )
    return path


def service_account(folder: Path) -> Path:
    folder.mkdir()
    (folder / "token").write_text("pod-token\n")
    (folder / "ca.crt").write_text("ca")
    (folder / "namespace").write_text("gpuslice")
    return folder


IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_a_given_file_wins_over_everything(tmp_path: Path) -> None:
    """The user named it, so nothing else is looked at."""
    path = kubeconfig(tmp_path / "given")
    found = config.load(path, environment=IN_A_POD | {"KUBECONFIG": "/nowhere"})
    assert (found.server, found.namespace, found.token()) == ("https://one:6443", "team", "t")


def test_the_variable_wins_over_the_pod(tmp_path: Path) -> None:
    """A person in a pod says with it where to go."""
    path = kubeconfig(tmp_path / "named")
    found = config.load(environment=IN_A_POD | {"KUBECONFIG": str(path)})
    assert found.server == "https://one:6443"


def test_a_pod_reaches_its_own_cluster(tmp_path: Path) -> None:
    """Token, CA and namespace come from the folder that kubelet mounts."""
    folder = service_account(tmp_path / "sa")
    found = config.load(environment=IN_A_POD, home=tmp_path, service_account=folder)
    assert found.server == "https://10.0.0.1:443"
    assert found.namespace == "gpuslice"
    assert found.token() == "pod-token"
    assert found.ca_file == folder / "ca.crt"


def test_an_ipv6_service_is_bracketed(tmp_path: Path) -> None:
    """An address with colons is no host of a URL by itself."""
    folder = service_account(tmp_path / "sa")
    found = config.load(
        environment={"KUBERNETES_SERVICE_HOST": "fd00::1"}, home=tmp_path, service_account=folder
    )
    assert found.server == "https://[fd00::1]:443"


def test_the_home_folder_is_the_last_resort(tmp_path: Path) -> None:
    """As for kubectl."""
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path / ".kube" / "config")
    assert config.load(environment={}, home=tmp_path).server == "https://one:6443"


def test_a_context_is_chosen_by_name(tmp_path: Path) -> None:
    """Its namespace is default where it names none."""
    found = config.load(kubeconfig(tmp_path / "k"), context="other")
    assert (found.server, found.namespace) == ("https://two:6443", "default")


def test_the_first_of_several_files_wins(tmp_path: Path) -> None:
    """A file that isn't there is passed over, as kubectl does."""
    first = kubeconfig(tmp_path / "1", server="https://first:1")
    second = kubeconfig(tmp_path / "2", server="https://second:1")
    named = f"{tmp_path}/missing:{first}:{second}"
    assert config.load(environment={"KUBECONFIG": named}).server == "https://first:1"


def test_nothing_found_names_all_that_was_looked_for(tmp_path: Path) -> None:
    """The reader learns what to set."""
    with pytest.raises(ConfigError) as caught:
        config.load(environment={}, home=tmp_path)
    for word in ("$KUBECONFIG", str(tmp_path / ".kube" / "config"), "$KUBERNETES_SERVICE_HOST"):
        assert word in str(caught.value)


def test_a_pod_without_its_token_is_told_which_file_is_missing(tmp_path: Path) -> None:
    """The usual cause is named."""
    with pytest.raises(ConfigError, match=r"token.*automountServiceAccountToken"):
        config.load(environment=IN_A_POD, home=tmp_path, service_account=tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            {"current-context": "gone"}, "no context 'gone'; there are: main", id="context"
        ),
        pytest.param({"current-context": ""}, "current-context is not set", id="none-chosen"),
        pytest.param({"clusters": []}, "no cluster 'c'", id="cluster"),
        pytest.param({"users": []}, "no user 'u'", id="user"),
        pytest.param(
            {"clusters": [{"name": "c", "cluster": {}}]}, "'c' has no server", id="no-server"
        ),
        pytest.param(
            {"clusters": [{"name": "c", "cluster": {"server": "https://x", "proxy-url": "p"}}]},
            "proxy-url is not supported",
            id="proxy",
        ),
        pytest.param(
            {"users": [{"name": "u", "user": {"auth-provider": {"name": "gcp"}}}]},
            "use exec",
            id="auth-provider",
        ),
        pytest.param(
            {"users": [{"name": "u", "user": {"client-key-data": "%"}}]},
            "client-key-data is not base64",
            id="base64",
        ),
        pytest.param(
            {"users": [{"name": "u", "user": {"exec": {"command": "x", "apiVersion": "v0"}}}]},
            "exec.apiVersion 'v0'",
            id="exec-version",
        ),
    ],
)
def test_a_broken_file_is_named_with_its_fault(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """Each fault says what it is about."""
    path = kubeconfig(tmp_path / "k")
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert words in str(caught.value)


def test_a_file_that_is_no_yaml_says_so(tmp_path: Path) -> None:
    """With its path."""
    path = tmp_path / "k"
    path.write_text("a: [")
    with pytest.raises(ConfigError, match=str(path)):
        config.load(path)


def test_relative_paths_start_from_the_file(tmp_path: Path) -> None:
    """As kubectl reads them."""
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "t").write_text("from-file")
    path = kubeconfig(folder / "k", tokenFile="t")
    assert config.load(path).token() == "from-file"


def test_inline_certificates_are_decoded(tmp_path: Path) -> None:
    """They never need to stand in a file."""
    data = base64.b64encode(b"pem").decode()
    path = kubeconfig(tmp_path / "k", **{"client-certificate-data": data, "client-key-data": data})
    found = config.load(path)
    assert (found.certificate_pem, found.key_pem) == (b"pem", b"pem")
