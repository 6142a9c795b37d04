# SPDX-License-Identifier: Apache-2.0
"""The image made here says of itself what deploy/Dockerfile says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness.images import ImageConfig
from tests.cluster.harness.paths import REPOSITORY
from tests.cluster.harness.product_image import DOCKERFILE, STEPS, image_config, keys


def test_the_last_stage_of_a_dockerfile_is_the_image() -> None:
    config = image_config(
        "FROM debian AS one\nENV A=1\nUSER 5\n"
        "FROM scratch\nENV PATH=/bin\nENV B=2 \\\n    C='3 4'\nLABEL x.y=\"a b\"\n"
        'USER 7:7\nENTRYPOINT ["/bin/x"]\nCMD ["--help"]\n'
    )
    assert config == ImageConfig(
        environment=("PATH=/bin", "B=2", "C=3 4"),
        labels={"x.y": "a b"},
        user="7:7",
        entrypoint=("/bin/x",),
        command=("--help",),
    )


def test_the_dockerfile_takes_the_same_steps_in_the_same_order() -> None:
    text = (REPOSITORY / DOCKERFILE).read_text()
    runs = [text.index(f"{step.script} /image") for step in STEPS]
    assert runs == sorted(runs)
    copies = [line for line in text.splitlines() if line.startswith("COPY --from=")]
    assert [copy.split("=")[1].split()[0] for copy in copies] == [
        step.script.stem for step in STEPS
    ]
    assert [copy.split()[2].lstrip("/") or "." for copy in copies[1:]] == [
        f"image/{step.holds}" for step in STEPS[1:]
    ]


def test_the_image_runs_as_no_root_by_default() -> None:
    config = image_config((REPOSITORY / DOCKERFILE).read_text())
    assert config.user == "65532:65532"
    assert config.entrypoint


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for step in STEPS:
        for path in (step.script, *step.reads):
            target = tmp_path / path if path.suffix else tmp_path / path / "module.py"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(str(path))
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        pytest.param("deploy/image/debian.sh", 0, id="the first script"),
        pytest.param("requirements/runtime.txt", 1, id="locked dependencies"),
        pytest.param("webhook/module.py", 2, id="our code"),
        pytest.param("webhook/__pycache__/module.pyc", 3, id="byte code"),
        pytest.param("tests/unit/test_x.py", 3, id="a test"),
    ],
)
def test_a_change_makes_anew_what_depends_on_it(repository: Path, changed: str, same: int) -> None:
    before = keys(repository)
    path = repository / changed
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("changed")
    after = keys(repository)
    assert [old == new for old, new in zip(before, after, strict=True)] == [
        index < same for index in range(len(STEPS))
    ]
