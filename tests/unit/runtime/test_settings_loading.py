# SPDX-License-Identifier: Apache-2.0
"""The settings file: its defaults, its keys, and what is said of a bad one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from gpuslice.contract.shares import parse_share
from gpuslice.contract.slices import SliceBy
from gpuslice.runtime import setting_faults, settings
from gpuslice.runtime.settings import Settings, SettingsError


def load(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return settings.load(path)


@pytest.mark.parametrize("text", ["", "{}", "# nothing\n"], ids=["empty", "braces", "comment"])
def test_an_empty_file_is_the_defaults(tmp_path: Path, text: str) -> None:
    """So are no file at all, and an untouched ConfigMap."""
    assert load(tmp_path, text) == Settings() == settings.load()


def test_the_defaults_are_those_of_the_design() -> None:
    """Both halves and the documents name them."""
    found = Settings()
    assert (found.resource_name, found.slice_by, found.slices_per_gpu) == (
        "nvidia.com/gpu-slice",
        "fraction",
        100,
    )
    assert (found.slice_memory_mib, found.min_share_mib, found.max_shares) == (1024, 128, 64)
    assert found.shares == ("0.1", "0.125", "0.2", "0.25", "0.5", "0.75", "1")
    assert (found.share_idle_seconds, found.adopt_schedulers) == (600, ())
    assert (found.whole_gpu_resource, found.placement) == ("", "pack")
    assert found.arbiter_failure_policy == "Ignore"
    assert (found.reservation_seconds, found.force_deleted_seconds) == (120, 10)
    assert (found.arbiter.wait_milliseconds, found.arbiter.ledger_wait_seconds) == (500, 2)
    assert (found.arbiter.rise_hold_milliseconds, found.arbiter.max_waiters) == (50, 16)
    assert found.device_plugin.ignored_xids == (13, 31, 43, 45, 68, 109)


def test_keys_are_camel_case_with_mib_spelled_as_a_unit(tmp_path: Path) -> None:
    """As Kubernetes users write them."""
    found = load(
        tmp_path,
        """
        sliceBy: memory
        sliceMemoryMiB: 2048
        minShareMiB: 256
        shares: [4000mi]
        adoptSchedulers: [kai-scheduler]
        wholeGpuResource: nvidia.com/gpu
        devicePlugin: {kubeletRoot: /var/lib/k0s/kubelet, mig: skip}
        webhook: {port: 0, certificateMode: files}
        hints: {tensorflow: false}
        """,
    )
    assert found.slice_rule.slice_by is SliceBy.MEMORY
    assert found.slice_rule.slice_memory_mib == 2048
    assert found.standing_shares == (parse_share("4000mi"),)
    assert found.device_plugin.plugin_path == Path("/var/lib/k0s/kubelet/device-plugins")
    assert found.device_plugin.pod_resources_path == Path(
        "/var/lib/k0s/kubelet/pod-resources/kubelet.sock"
    )
    assert found.webhook.certificate_mode == "files"
    assert found.hints.frameworks == ("jax",)


def test_a_folder_of_sockets_may_be_elsewhere(tmp_path: Path) -> None:
    """The tests' kubelets have theirs in short paths."""
    found = load(tmp_path, "devicePlugin: {pluginDir: /tmp/x}")
    assert found.device_plugin.plugin_path == Path("/tmp/x")


def test_shares_may_be_written_as_numbers(tmp_path: Path) -> None:
    """YAML makes numbers of them; 1.0 is the share 1."""
    found = load(tmp_path, "shares: [0.5, 1.0, 1, 0.10, 4000mi, '0.25']")
    assert found.shares == ("0.5", "1", "1", "0.1", "4000mi", "0.25")


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        pytest.param(
            "slicesPerGpu: 33",
            "slicesPerGpu",
            ["slicesPerGpu: 33", "factors 2 and 5", "100"],
            id="factors",
        ),
        pytest.param(
            "slicesPerGpu: 0", "slicesPerGpu", ["0 is not allowed", ">= 1", "e.g. 100"], id="zero"
        ),
        pytest.param(
            "slicesPerGPU: 10", "slicesPerGPU", ["did you mean slicesPerGpu"], id="misspelt"
        ),
        pytest.param(
            "webhook: {prt: 1}", "webhook.prt", ["webhook.prt", "did you mean port"], id="nested"
        ),
        pytest.param("zzz: 1", "zzz", ["zzz is no setting: there are"], id="unknown"),
        pytest.param(
            "placement: packed",
            "placement",
            ["'packed'", "one of pack, spread", 'e.g. "pack"'],
            id="choice",
        ),
        pytest.param(
            "arbiter: {maxWaiters: many}",
            "arbiter.maxWaiters",
            ["'many'", "expected int", "e.g. 16"],
            id="type",
        ),
        pytest.param("webhook: 9443", "webhook", ["9443", "expected object"], id="no-section"),
        pytest.param(
            "webhook: {port: 70000}", "webhook.port", ["70000", "65535", "e.g. 9443"], id="port"
        ),
        pytest.param(
            "resourceName: slices",
            "resourceName",
            ["'slices'", "with its domain", "e.g. nvidia.com/gpu"],
            id="resource",
        ),
        pytest.param(
            "resourceName: nvidia.com/gpu\nwholeGpuResource: nvidia.com/gpu",
            "wholeGpuResource",
            ["resourceName already"],
            id="same-resource",
        ),
        pytest.param("shares: ['0.50']", "shares[0]", ["0.5"], id="not-normal"),
        pytest.param("shares: [0.5, 0.005]", "shares[1]", ["1/100"], id="below-a-slice"),
        pytest.param("shares: [64mi]", "shares[0]", ["minShareMiB, 128"], id="below-the-least"),
        pytest.param("shares: [true]", "shares[0]", ["True", "expected str"], id="no-share"),
        pytest.param(
            "shares: [0.5, 1]\nmaxShares: 1", "shares", ["more than maxShares"], id="too-many"
        ),
        pytest.param(
            "devicePlugin: {ignoredXids: [13, x]}",
            "devicePlugin.ignoredXids[1]",
            ["'x'", "expected int"],
            id="in-a-list",
        ),
        pytest.param(
            "reservationSeconds: 5",
            "reservationSeconds",
            ["5", ">= 60", "e.g. 120.0"],
            id="shorter-than-a-request",
        ),
    ],
)
def test_a_bad_setting_is_named_with_value_allowed_and_example(
    tmp_path: Path, text: str, field: str, words: list[str]
) -> None:
    """Who reads it can mend it."""
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert caught.value.field == field
    for word in [str(tmp_path / "settings.yaml"), *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("text", ["a: [", "- a", "just text"], ids=["broken", "list", "text"])
def test_a_file_that_is_no_mapping_says_so(tmp_path: Path, text: str) -> None:
    """With its path."""
    with pytest.raises(SettingsError, match=r"settings\.yaml"):
        load(tmp_path, text)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    """A typing error must not mean the defaults."""
    with pytest.raises(SettingsError, match="missing"):
        settings.load(tmp_path / "missing")


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    """Flags of one process; the rest of a section stays."""
    path = tmp_path / "s.yaml"
    path.write_text("devicePlugin: {driverRoot: /a, mig: skip}")
    overrides = {"devicePlugin.driverRoot": "/b", "slicesPerGpu": 50}
    found = settings.load(path, overrides)
    assert (found.device_plugin.driver_root, found.device_plugin.mig) == ("/b", "skip")
    assert found.slices_per_gpu == 50


def test_override_flags_are_read_as_yaml() -> None:
    """Numbers and lists are such; an empty value is an empty text."""
    found = setting_faults.parse_overrides(
        ["slicesPerGpu=50", "adoptSchedulers=[a, b]", "wholeGpuResource=", "webhook.host=::1"]
    )
    assert found == {
        "slicesPerGpu": 50,
        "adoptSchedulers": ["a", "b"],
        "wholeGpuResource": "",
        "webhook.host": "::1",
    }


@pytest.mark.parametrize("item", ["slicesPerGpu", "=5", "a=[", "x.y.z=1"])
def test_a_bad_override_is_refused(item: str) -> None:
    """Be it its form or its key."""
    with pytest.raises(SettingsError):
        settings.load(None, setting_faults.parse_overrides([item]))


def test_settings_never_change() -> None:
    """They are read once and passed down."""
    with pytest.raises(AttributeError):
        Settings().slices_per_gpu = 3  # type: ignore[misc]  # the point of the test


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """All defaults, spelt out, are the defaults."""
    text = yaml.safe_dump(msgspec.to_builtins(Settings()))
    assert load(tmp_path, text) == Settings()


@pytest.mark.parametrize("key", ["sliceBy: memory", "slicesPerGpu: 10"], ids=["by", "count"])
def test_slices_are_never_overridden_for_some_nodes(tmp_path: Path, key: str) -> None:
    """Both halves count in them, for all nodes alike."""
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, f"devicePlugin: {{overrides: [{{nodes: [a]}}, {{nodes: [b], {key}}}]}}")
    name = key.partition(":")[0]
    assert f"devicePlugin.overrides[1].{name}" in str(caught.value)
    assert "whole cluster" in str(caught.value)


def test_an_override_s_value_is_checked_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"devicePlugin\.overrides\[0\]\.mode: 'mig'"):
        load(tmp_path, "devicePlugin: {overrides: [{mode: mig}]}")
    with pytest.raises(SettingsError, match=r"did you mean ignoredXids"):
        load(tmp_path, "devicePlugin: {overrides: [{ignoredXid: [13]}]}")


def test_hami_core_needs_a_library(tmp_path: Path) -> None:
    for text in ("mode: hami-core", "devicePlugin: {overrides: [{mode: hami-core}]}"):
        with pytest.raises(SettingsError, match=r"devicePlugin\.hamiCore\.library"):
            load(tmp_path, text)
    assert load(tmp_path, "{mode: hami-core, devicePlugin: {hamiCore: {library: /x.so}}}")
