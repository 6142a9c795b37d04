# SPDX-License-Identifier: Apache-2.0
"""Which Kubernetes can be built, and when it must be built anew."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.cluster.harness import gomodules
from tests.cluster.harness.build import (
    DEFAULT_KUBE_VERSION,
    GoModule,
    key,
    kube_mod_file,
    modules,
)
from tests.cluster.harness.errors import HarnessError
from tests.cluster.harness.gpus import read_plans
from tests.cluster.harness.paths import REPOSITORY

UPSTREAM = """\
module k8s.io/kubernetes

go 1.26.0

godebug default=go1.26

require (
	github.com/spf13/cobra v1.10.2
	k8s.io/api v0.0.0
	k8s.io/kube-openapi v0.0.0-20260317180543-43fb72c5454a
	k8s.io/mount-utils v0.0.0
	k8s.io/sample-apiserver v0.0.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
)
"""


@pytest.mark.parametrize("version", ["1.34.4", "1.36.3", "1.37.2"])
def test_each_supported_kubernetes_has_its_module_file(version: str) -> None:
    path = kube_mod_file(version)
    text = path.read_text()
    assert f"k8s.io/kubernetes v{version}\n" in text
    assert f"k8s.io/api v0.{version.partition('.')[2]} // indirect\n" in text
    assert path.with_suffix(".sum").exists()


def test_the_default_is_what_go_finds_by_itself() -> None:
    assert kube_mod_file(DEFAULT_KUBE_VERSION).name == "go.mod"


def test_an_unknown_kubernetes_is_refused_with_the_known_ones() -> None:
    with pytest.raises(HarnessError, match=r"'1\.2\.3'.* 1\.34\.4, 1\.36\.3, 1\.37\.2"):
        kube_mod_file("1.2.3")


def test_the_programs_are_stamped_with_their_version() -> None:
    flags = " ".join(modules("1.37.2")[-1].flags)
    assert "gitVersion=v1.37.2" in flags
    assert "gitMajor=1" in flags
    assert "gitMinor=37" in flags


@pytest.fixture
def module(tmp_path: Path) -> GoModule:
    for name in ("go.mod", "go.sum", "main.go"):
        (tmp_path / name).write_text(name)
    return GoModule(
        name="thing",
        title="Thing",
        mod_file=tmp_path / "go.mod",
        programs=("thing",),
        packages=(".",),
        flags=("-x",),
    )


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go"])
def test_a_changed_source_is_another_build(module: GoModule, name: str) -> None:
    before = key(module, "go1.26.8")
    (module.folder / name).write_text("changed")
    assert key(module, "go1.26.8") != before


def test_other_flags_or_another_compiler_are_another_build(module: GoModule) -> None:
    keys = {
        key(module, "go1.26.8"),
        key(module, "go1.27.0"),
        key(dataclasses.replace(module, flags=("-y",)), "go1.26.8"),
    }
    assert len(keys) == 3
    assert key(module, "go1.26.8") in keys


def test_staging_modules_are_required_at_the_version_of_the_release() -> None:
    text = gomodules.mod_text("1.36.3", UPSTREAM)
    assert text == (
        "module gpuslice.dev/tests/cluster/kubernetes\n\n"
        "go 1.26.0\n\n"
        "godebug default=go1.26\n\n"
        "require (\n"
        "\tk8s.io/kubernetes v1.36.3\n"
        "\tk8s.io/api v0.36.3\n"
        "\tk8s.io/mount-utils v0.36.3\n"
        ")\n"
    )


def test_a_version_that_is_none_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(HarnessError, match=r"like 1\.36\.3, not 'latest'"):
        gomodules.write("latest")


def test_the_make_targets_default_is_the_harness_default() -> None:
    text = (REPOSITORY / "tests" / "cluster" / "cluster.mk").read_text()
    assert f"KUBE_VERSION ?= {DEFAULT_KUBE_VERSION}\n" in text


def test_the_example_of_gpus_is_right() -> None:
    plans = {plan.name: plan for plan in read_plans(REPOSITORY / "tests/cluster/gpus.yaml")}
    assert {name: len(plan.gpus) for name, plan in plans.items()} == {
        "node-a": 2,
        "node-b": 2,
        "node-c": 0,
    }
