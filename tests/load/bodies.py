# SPDX-License-Identifier: Apache-2.0
"""Reviews of a wanted size, as an API server sends them; and what no API server ever sends."""

from __future__ import annotations

import random
from typing import Any

import orjson

WORDS = ("gpu-fraction", "gpu-memory", "é\u202e", "0.5", "-1", "NaN", "4Gi", "", "nvidia.com/gpu")


def review(*, size_bytes: int, annotations: dict[str, str] | None = None) -> bytes:
    """Return the review of a pod of three containers, filled up with variables and field owners."""
    body: dict[str, Any] = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "research",
            "operation": "CREATE",
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
            "object": _pod({"gpu-fraction": "0.5"} if annotations is None else annotations),
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }
    pod = body["request"]["object"]
    env, owned = pod["spec"]["containers"][0]["env"], pod["metadata"]["managedFields"][0]
    number = 0
    while len(orjson.dumps(body)) < size_bytes:
        # About half of what a large pod weighs are its variables, the other half who owns them.
        key = f"SERVICE_{number}_HOST"
        env.append({"name": key, "value": f"service-{number}.research.svc"})
        owned["fieldsV1"][f'k:{{"name":"{key}"}}'] = {".": {}, "f:name": {}, "f:value": {}}
        number += 1
    return orjson.dumps(body)


def _pod(annotations: dict[str, str]) -> dict[str, Any]:
    limits = {"cpu": "2", "memory": "4Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "train-7c5ddbdf54-",
            "namespace": "research",
            "labels": {"app": "train", "pod-template-hash": "7c5ddbdf54"},
            "annotations": {**annotations, "gpu-fraction-container-name": "train"},
            "managedFields": [
                {"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": {}}
            ],
        },
        "spec": {
            "containers": [
                {
                    "name": name,
                    "image": f"registry.example.com/research/{name}:1.4.2",
                    "env": [{"name": "MODE", "value": name}],
                    "resources": {"limits": limits, "requests": limits},
                }
                for name in ("train", "metrics", "shipper")
            ],
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "serviceAccountName": "default",
        },
    }


def spoilt(body: bytes, chance: random.Random) -> bytes:
    """Return a review with a few of its values replaced by others of any type."""
    review_ = orjson.loads(body)
    for _ in range(chance.randint(1, 4)):
        place: Any = review_
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = chance.choice(keys)
            if isinstance(place[key], dict | list) and place[key] and chance.random() < 0.85:
                place = place[key]
                continue
            place[key] = _anything(chance, depth=3)
            break
        if not review_:
            break
    return orjson.dumps(review_)


def _anything(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(8 if depth else 6)
    if kind == 6:
        return [_anything(chance, depth - 1) for _ in range(chance.randrange(3))]
    if kind == 7:
        return {chance.choice(WORDS): _anything(chance, depth - 1) for _ in range(2)}
    return (None, True, chance.choice(WORDS), chance.randint(-9, 2**40), 0.5, "x" * 300)[kind]
