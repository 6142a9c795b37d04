# SPDX-License-Identifier: Apache-2.0
"""The verbs that change something: create, bind, update, patch, delete."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from gpuslice.sim.apiserver import binding, failures, objects, patching
from gpuslice.sim.apiserver.calls import Admission, Answer, Attributes, Call, Target
from gpuslice.sim.apiserver.decoding import decode
from gpuslice.sim.apiserver.kinds import BINDINGS, NAMESPACES, PODS
from gpuslice.sim.apiserver.rules import rules_of
from gpuslice.sim.apiserver.store import StaleError, Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from gpuslice.sim.apiserver.deletion import Deletion
    from gpuslice.sim.apiserver.history import Stored
    from gpuslice.sim.apiserver.reads import Reads

Json = dict[str, Any]

PATCH_TRIES = 5
"""How often a patch without a resourceVersion is tried when others write meanwhile."""
_RETURNS_DELETED = frozenset({PODS.resource})
"""Resources whose deletion answers with the object; the others' with a Status."""


class Writes:
    """Runs each write through decoding, defaults, admission, validation and the store."""

    def __init__(
        self,
        *,
        store: Store,
        reads: Reads,
        deletion: Deletion,
        admission: Admission,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._reads = reads
        self._deletion = deletion
        self._admission = admission
        self._clock = clock

    def create(self, call: Call) -> Answer:
        target = call.target
        if target.subresource == "binding" or target.kind is BINDINGS:
            return self._bind(call)
        if target.subresource == "eviction":
            return self._evict(call)
        if target.name:
            raise failures.not_allowed()
        kind, rules = target.kind, rules_of(target.kind)
        content = decode(kind, call.json())
        if content["metadata"].get("resourceVersion"):
            raise failures.bad_request("resourceVersion should not be set on objects to be created")
        content = objects.named(kind, objects.wiped(content), namespace=target.namespace)
        self._check_namespace(target)
        content = rules.default(content)
        seen = replace(target, name=content["metadata"].get("name", ""))
        attributes = self._attributes(
            call, target=seen, operation="CREATE", content=content, default=rules.default
        )
        attributes = replace(attributes, content=self._admission.mutate(attributes))
        content = objects.with_generated_name(_required(attributes))
        content = rules.prepare(objects.stamp_new(content, self._clock()))
        faults = objects.check(kind, content)
        faults = faults or rules.check(content)
        name = content["metadata"].get("name", "")
        if faults:
            raise failures.invalid(kind, name, faults)
        self._admission.validate(
            replace(attributes, content=content, target=replace(target, name=name))
        )
        if self._store.get(kind.resource, target.namespace, name) is not None:
            raise failures.already_exists(kind, name)
        if call.is_dry_run:
            return Answer(code=201, body=orjson.dumps(content))
        try:
            stored = self._store.write(kind.resource, content, replaces=None)
        except StaleError as err:
            raise failures.already_exists(kind, name) from err
        return Answer(code=201, body=stored.encoded)

    def update(self, call: Call) -> Answer:
        kind = call.target.kind
        content = decode(kind, call.json())
        content = objects.named(
            kind, content, namespace=call.target.namespace, name=call.target.name
        )
        asked = content["metadata"].get("resourceVersion")
        if not asked and kind.is_custom:
            fault = ("metadata.resourceVersion", "Invalid value: must be specified for an update")
            raise failures.invalid(kind, call.target.name, [fault])
        return self._change(call, lambda _: content, is_final=bool(asked))

    def patch(self, call: Call) -> Answer:
        kind = call.target.kind
        apply = {
            "application/merge-patch+json": patching.merge,
            "application/json-patch+json": patching.apply_json_patch,
            "application/strategic-merge-patch+json": patching.merge_strategically,
        }.get(call.content_type.partition(";")[0].strip())
        if apply is None or (apply is patching.merge_strategically and kind.is_custom):
            raise failures.unsupported_media(
                f"the body of the request was in an unknown format: {call.content_type}"
            )
        patch = call.json()

        def change(before: Json) -> Json:
            try:
                content = decode(kind, apply(before, patch))
            except patching.PatchError as err:
                raise failures.ApiError(
                    422, "Invalid", f"the server rejected our request: {err}"
                ) from err
            return objects.named(
                kind, content, namespace=call.target.namespace, name=call.target.name
            )

        names_version = isinstance(patch, dict) and bool(
            (patch.get("metadata") or {}).get("resourceVersion")
        )
        return self._change(call, change, is_final=names_version)

    def _change(self, call: Call, change: Callable[[Json], Json], *, is_final: bool) -> Answer:
        """Apply a change to the object of now, again while others write in between."""
        if call.target.subresource not in {"", "status"}:
            raise failures.not_allowed()
        for _ in range(1 if is_final else PATCH_TRIES):
            stored = self._reads.find(call)
            try:
                return self._change_once(call, stored, change(stored.copy()))
            except StaleError:
                continue
        raise failures.stale(call.target.kind, call.target.name)

    def _change_once(self, call: Call, stored: Stored, content: Json) -> Answer:
        kind, rules, before = call.target.kind, rules_of(call.target.kind), stored.copy()
        meta = content["metadata"]
        if meta.get("resourceVersion") not in {None, "", str(stored.version)}:
            raise failures.stale(kind, stored.name)
        if meta.get("uid", before["metadata"]["uid"]) != before["metadata"]["uid"]:
            why = f"Precondition failed: UID: {meta['uid']}, the object's: differs"
            raise failures.conflict(kind, stored.name, why)
        content = self._prepared(call, rules.default(content), before)
        attributes = self._attributes(
            call, operation="UPDATE", content=content, before=before, default=rules.default
        )
        content = _required(replace(attributes, content=self._admission.mutate(attributes)))
        content = self._prepared(call, content, before)
        faults = objects.check(kind, content)
        if not faults and not call.target.subresource:
            faults = rules.check(content) + rules.check_change(content, before)
        if faults:
            raise failures.invalid(kind, stored.name, faults)
        self._admission.validate(replace(attributes, content=content))
        content["metadata"]["resourceVersion"] = str(stored.version)
        if content == before:
            return Answer(code=200, body=stored.encoded)
        if call.is_dry_run:
            return Answer(code=200, body=orjson.dumps(content))
        written = self._store.write(kind.resource, content, replaces=stored)
        if "deletionTimestamp" in content["metadata"]:
            written = self._deletion.finish(kind.resource, written)
        return Answer(code=200, body=written.encoded)

    def _prepared(self, call: Call, content: Json, before: Json) -> Json:
        kind = call.target.kind
        if call.target.subresource == "status":
            content = objects.with_only_status(kind, content, before)
        elif kind.has_status:
            content = objects.with_status_of(content, before)
        return objects.kept(content, before)

    def delete(self, call: Call) -> Answer:
        if call.target.subresource:
            raise failures.not_allowed()
        return self._delete(call, self._delete_options(call))

    def delete_collection(self, call: Call) -> Answer:
        options = self._delete_options(call)
        selected = self._reads.select(call)
        for stored in selected:
            target = replace(call.target, namespace=stored.namespace, name=stored.name)
            try:
                self._delete(replace(call, target=target), options)
            except failures.ApiError as err:
                if err.code != 404:
                    raise
        kind = call.target.kind
        body: Json = {"apiVersion": kind.api_version, "kind": f"{kind.kind}List", "metadata": {}}
        body["items"] = [orjson.Fragment(stored.encoded) for stored in selected]
        return Answer(code=200, body=orjson.dumps(body))

    def _delete_options(self, call: Call) -> Json:
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if call.body:
            said = call.json()
            if not isinstance(said, dict):
                raise failures.bad_request("DeleteOptions must be an object")
            options |= said
        if "gracePeriodSeconds" in call.query:
            grace = call.query["gracePeriodSeconds"]
            if not grace.isdigit():
                raise failures.bad_request(f"gracePeriodSeconds must be a number, not {grace!r}")
            options["gracePeriodSeconds"] = int(grace)
        if "propagationPolicy" in call.query:
            options["propagationPolicy"] = call.query["propagationPolicy"]
        return options

    def _delete(self, call: Call, options: Json, *, is_asked: bool = True) -> Answer:
        """Delete the call's target. An eviction has been through admission already."""
        kind = call.target.kind
        is_dry_run = call.is_dry_run or bool(options.get("dryRun"))
        while True:
            stored = self._reads.find(call)
            _check_preconditions(call.target, stored, options.get("preconditions") or {})
            if is_asked:
                self._admission.validate(
                    replace(
                        self._attributes(
                            call, operation="DELETE", content=None, before=stored.copy()
                        ),
                        options=options,
                        is_dry_run=is_dry_run,
                    )
                )
            if is_dry_run:
                return Answer(code=200, body=stored.encoded)
            try:
                last, is_gone = self._deletion.delete(
                    kind.resource,
                    stored,
                    grace_seconds=options.get("gracePeriodSeconds"),
                    policy=options.get("propagationPolicy") or "Background",
                )
            except StaleError:
                continue
            if not is_gone or kind.resource in _RETURNS_DELETED:
                return Answer(code=200, body=last.encoded)
            details = {"name": last.name, "kind": kind.plural}
            details |= {"group": kind.group} if kind.group else {}
            details["uid"] = last.content["metadata"]["uid"]
            return Answer(code=200, body=orjson.dumps(failures.success(200, details)))

    def _bind(self, call: Call) -> Answer:
        target = call.target
        content = decode(BINDINGS, call.json())
        content = objects.named(BINDINGS, content, namespace=target.namespace, name=target.name)
        name = content["metadata"].get("name", "")
        self._check_namespace(target)
        attributes = self._attributes(
            call,
            target=replace(target, name=name),
            kind=BINDINGS,
            operation="CREATE",
            content=content,
        )
        attributes = replace(attributes, content=self._admission.mutate(attributes))
        self._admission.validate(attributes)
        content = _required(attributes)
        binding.check(content)
        pod_call = replace(call, target=Target(kind=PODS, namespace=target.namespace, name=name))
        while True:
            stored = self._reads.find(pod_call)
            pod = binding.bound(stored, content, self._clock())
            faults = objects.check(PODS, pod)
            if faults:
                raise failures.invalid(PODS, name, faults)
            try:
                if not call.is_dry_run:
                    self._store.write(PODS.resource, pod, replaces=stored)
            except StaleError:
                continue
            return Answer(code=201, body=orjson.dumps(failures.success(201)))

    def _evict(self, call: Call) -> Answer:
        content = call.json()
        eviction = replace(BINDINGS, group="policy", kind="Eviction", plural="evictions")
        content = decode(eviction, content)
        content = objects.named(
            eviction, content, namespace=call.target.namespace, name=call.target.name
        )
        attributes = self._attributes(call, kind=eviction, operation="CREATE", content=content)
        self._admission.mutate(attributes)
        self._admission.validate(attributes)
        self._delete(call, content.get("deleteOptions") or {}, is_asked=False)
        return Answer(code=201, body=orjson.dumps(failures.success(201)))

    def _check_namespace(self, target: Target) -> None:
        if not target.kind.namespaced:
            return
        if not target.namespace:
            raise failures.not_allowed()
        if self._store.get(NAMESPACES.resource, "", target.namespace) is None:
            raise failures.not_found(NAMESPACES, target.namespace)

    def _attributes(
        self,
        call: Call,
        *,
        operation: str,
        content: Json | None,
        before: Json | None = None,
        target: Target | None = None,
        kind: Any = None,
        default: Callable[[Json], Json] = lambda content: content,
    ) -> Attributes:
        options_kind = {"CREATE": "Create", "UPDATE": "Update", "DELETE": "Delete"}[operation]
        options: Json = {"kind": f"{options_kind}Options", "apiVersion": "meta.k8s.io/v1"}
        if call.query.get("fieldManager"):
            options["fieldManager"] = call.query["fieldManager"]
        if call.is_dry_run:
            options["dryRun"] = ["All"]
        return Attributes(
            target=target or call.target,
            kind=kind or call.target.kind,
            operation=operation,
            content=content,
            before=before,
            options=options,
            user=call.user,
            is_dry_run=call.is_dry_run,
            warn=call.warn,
            default=default,
        )


def _required(attributes: Attributes) -> Json:
    assert attributes.content is not None
    return attributes.content


def _check_preconditions(target: Target, stored: Stored, preconditions: Json) -> None:
    meta = stored.content["metadata"]
    for field, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if preconditions.get(field) not in {None, meta[field]}:
            raise failures.conflict(
                target.kind,
                stored.name,
                f"Precondition failed: {label} in precondition: {preconditions[field]}, "
                f"{label} in object meta: {meta[field]}",
            )
