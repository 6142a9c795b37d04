# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a kubelet from outside, in a form in which two of them can be compared."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from protos.podresources.v1 import api_pb2

from .plugin import things_of
from .side import Side
from .steps import Plan

Seen = Mapping[str, Any]
"""Name of what is seen -> its value, e.g. "pod p3.0 phase" -> "Running"."""


def look(side: Side, plans: Mapping[str, Plan], *, is_exact: bool, lists: bool) -> Seen:
    """Look at everything.

    Args:
        side: the one to look at; it takes note of how its pods are called from now on.
        plans: how the pods of each group look.
        is_exact: whether both sides must hand out the very same tokens, not just as many.
        lists: whether to call PodResources List too, which frees tokens.
    """
    listed = [_resources(each) for each in side.list_pods()] if lists else None
    eye = _Eye(side, plans, is_exact=is_exact)
    found = eye.pods()
    found |= eye.node()
    found |= eye.checkpoint()
    if listed is not None:
        found |= {
            f"list {eye.called.get(name, name)}": eye.holdings(name, held)
            for name, held in listed
            if name in side.names
        }
    side.called = {called: name for name, called in eye.called.items() if name in eye.present}
    return found


class _Eye:
    def __init__(self, side: Side, plans: Mapping[str, Plan], *, is_exact: bool) -> None:
        self.side, self.plans, self.is_exact = side, plans, is_exact
        self.called: dict[str, str] = {}
        self.present: set[str] = set()

    def pods(self) -> dict[str, Any]:
        """Return what the API server and PodResources Get say of each pod."""
        by_name: dict[str, dict[str, Any]] = {}
        for pod in self.side.listed():
            name = pod["metadata"]["name"]
            by_name[name] = self._status(name, pod["status"])
            self.present.add(name)
            by_name[name]["get"] = self._get(name)
        for name in self.side.gone:
            by_name.setdefault(name, {})["get"] = self._get(name)
        entries = self._entries()
        # Equal pods of one group differ only by what became of them: that gives them their names.
        ranks: Counter[str] = Counter()
        for name in sorted(
            by_name, key=lambda name: (repr(by_name[name]), repr(entries.get(name)))
        ):
            group = self.side.names[name]
            self.called[name] = f"{group}.{ranks[group]}"
            ranks[group] += 1
        return {
            f"pod {self.called[name]} {key}": value
            for name, values in by_name.items()
            for key, value in values.items()
        }

    def _status(self, name: str, status: Mapping[str, Any]) -> dict[str, Any]:
        health: Counter[str] = Counter()
        has_ended = status.get("phase") in ("Succeeded", "Failed")
        # Of a pod that has ended the real one forgets the health at some later time: known.
        for container in () if has_ended else status.get("containerStatuses") or ():
            for each in container.get("allocatedResourcesStatus") or ():
                if each["name"] == self.side.resource:
                    ids = (f"{one['resourceID']}={one['health']}" for one in each["resources"])
                    shown = ids if self._is_exact(name) else (x.partition("=")[2] for x in ids)
                    health.update(f"{container['name']} {one}" for one in shown)
        return {
            "phase": status.get("phase"),
            "reason": status.get("reason"),
            "message": self._plain(status.get("message")),
            "health": dict(sorted(health.items())),
        }

    def _get(self, name: str) -> Any:
        answer = self.side.ask_about(name)
        if isinstance(answer, str):
            return self._plain(answer).replace(name, "NAME")
        return self.holdings(name, _resources(answer)[1])

    def _plain(self, text: str | None) -> str:
        """Leave out of a text what is no kubelet's doing: names of sockets."""
        return re.sub(r"/\S*\.sock", "SOCKET", text or "")

    def node(self) -> dict[str, Any]:
        """Return what the Node's status says of the sequence's resources."""
        status = self.side.node()["status"]
        allocatable = self.side.allocatable()
        return {
            f"node {key} {short}": status[key].get(resource)
            for key in ("capacity", "allocatable")
            for short, resource in (("tokens", self.side.resource), ("fit", self.side.fit))
        } | {"allocatable": tuple(sorted(allocatable))}

    def checkpoint(self) -> dict[str, Any]:
        """Return the checkpoint's entries of pods that there are, and how many others."""
        data = self.side.checkpoint()
        registered = data.get("RegisteredDevices", {}).get(self.side.resource)
        found: dict[str, Any] = {
            "checkpoint registered": None if registered is None else tuple(sorted(registered))
        }
        others: Counter[str] = Counter()
        for name, held in self._entries().items():
            if name in self.called:
                found[f"checkpoint {self.called[name]}"] = self.holdings(name, held)
            else:
                others[f"{self.side.names[name]}: {_counts(held)}"] += 1
        found["checkpoint of the dead"] = dict(sorted(others.items()))
        return found

    def _entries(self) -> dict[str, dict[str, tuple[str, ...]]]:
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for entry in self.side.checkpoint().get("PodDeviceEntries") or ():
            name = self.side.uids.get(entry["PodUID"])
            if name is None or entry["ResourceName"] != self.side.resource:
                continue
            ids = tuple(sorted(one for ids in entry["DeviceIDs"].values() for one in ids))
            things = things_of(base64.b64decode(entry["AllocResp"]))
            container = (
                f"{entry['ContainerName']} {','.join(entry['DeviceIDs'])} {','.join(things)}"
            )
            found.setdefault(name, {})[container] = ids
        return found

    def holdings(self, name: str, held: Mapping[str, Iterable[str]]) -> Any:
        """Return tokens by container; where chance has a part in them, just how many."""
        is_exact = self._is_exact(name)
        return {
            container: tuple(sorted(ids)) if is_exact else len(tuple(ids))
            for container, ids in sorted(held.items())
        }

    def _is_exact(self, name: str) -> bool:
        plan = self.plans.get(self.side.names.get(name, ""), Plan())
        return self.is_exact and plan.is_exact


def _counts(held: Mapping[str, Iterable[str]]) -> dict[str, int]:
    return {container: len(tuple(ids)) for container, ids in sorted(held.items())}


def _resources(pod: api_pb2.PodResources) -> tuple[str, dict[str, tuple[str, ...]]]:
    return pod.name, {
        container.name: tuple(
            f"{device_id}" for each in container.devices for device_id in each.device_ids
        )
        for container in pod.containers
    }
