# SPDX-License-Identifier: Apache-2.0
"""The kinds' schemas know every field that gpuslice writes: the API server drops the others."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from deviceplugin.inventory import Gpu, Inventory, spec_of
from gpuslice.contract import gpunode, names
from gpuslice.contract.names import GpuUuid
from gpuslice.contract.placement import Demand
from gpuslice.contract.shares import parse_share
from gpuslice.contract.slices import SliceRule
from tests.unit.webhook.ledgermaking import build_ledger, with_claim

CRDS = Path(__file__).parents[2] / "deploy" / "crds"


def read(name: str) -> dict[str, Any]:
    content = yaml.safe_load((CRDS / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def schema_of(crd: dict[str, Any]) -> dict[str, Any]:
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    assert isinstance(schema, dict)
    return schema


def faults(value: Any, schema: dict[str, Any], where: str = "") -> Iterator[str]:
    """Yield what the API server would drop or refuse, as far as these schemas go."""
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    if not isinstance(value, kinds[schema["type"]]):
        yield f"{where} is no {schema['type']}"
    elif isinstance(value, dict) and "properties" in schema:
        yield from (
            f"{where}.{key} is missing" for key in schema.get("required", ()) if key not in value
        )
        for key, inner in value.items():
            if key not in schema["properties"]:
                yield f"{where}.{key} is unknown"
            else:
                yield from faults(inner, schema["properties"][key], f"{where}.{key}")
    elif isinstance(value, list):
        for each in value:
            yield from faults(each, schema["items"], f"{where}[]")
    elif isinstance(value, str):
        if not re.search(schema.get("pattern", ""), value):
            yield f"{where}: {value!r} doesn't match"
        if value not in schema.get("enum", [value]):
            yield f"{where}: {value!r} is none of the enum"


def test_a_ledger_and_an_inventory_pass_the_schema_whole() -> None:
    ledger = build_ledger(2)
    for number, share in enumerate(("0.5", "4000mi")):
        ledger = with_claim(ledger, f"p{number}", share)
    gone = ledger.with_pod_gone(ledger.claims[0].pod.uid)
    gpu = Gpu(
        uuid=GpuUuid("MIG-1"),
        index=0,
        product="x",
        memory_mib=4000,
        reserved_mib=10,
        numa_node=1,
        mig_parent=GpuUuid("GPU-1"),
        healthy=False,
        reason="XID 79",
    )
    thing = {
        "apiVersion": names.API_VERSION,
        "kind": names.GPU_NODE_KIND,
        "metadata": {"name": "node-a"},
        "spec": spec_of(Inventory(gpus=(gpu,)), SliceRule(), mode="time-slicing"),
        "status": gpunode.status_of(gone),
    }
    assert list(faults(thing, schema_of(read("gpunodes")))) == []


def test_every_normal_form_of_a_share_passes_the_schema() -> None:
    schema = schema_of(read("gpushares"))
    for text in ("0.5", "1", "4000mi", "2x0.5", "16x4000mi", "2x1", "0.125"):
        demand = Demand(share=parse_share(text), slices=1)
        assert list(faults(gpunode.gpu_share(demand), schema)) == []
    wrong = dataclasses.replace(Demand(share=parse_share("0.5"), slices=1))
    thing = gpunode.gpu_share(wrong)
    thing["spec"]["share"] = "half"
    assert list(faults(thing, schema))


def test_names_are_those_of_the_contract() -> None:
    for name, kind, short in (
        ("gpunodes", names.GPU_NODE_KIND, "gn"),
        ("gpushares", names.GPU_SHARE_KIND, "gs"),
    ):
        spec = read(name)["spec"]
        assert (spec["group"], spec["scope"], spec["names"]["kind"]) == (
            names.GROUP,
            "Cluster",
            kind,
        )
        assert spec["names"]["shortNames"] == [short]
        assert [version["name"] for version in spec["versions"]] == [names.VERSION]
