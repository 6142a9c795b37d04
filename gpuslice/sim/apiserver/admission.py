# SPDX-License-Identifier: Apache-2.0
"""Admission: mutating webhooks in order, then policies, then validating webhooks.

Source: Kubernetes apiserver pkg/admission/plugin/webhook/mutating/dispatcher.go (v1.36).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from gpuslice.sim.apiserver import failures, patching, policies, reviews, webhooks
from gpuslice.sim.apiserver.callout import Callout
from gpuslice.sim.apiserver.decoding import decode
from gpuslice.sim.apiserver.kinds import (
    MUTATING_HOOKS,
    NAMESPACES,
    POLICIES,
    POLICY_BINDINGS,
    VALIDATING_HOOKS,
)
from gpuslice.sim.apiserver.selectors import labels_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuslice.sim.apiserver.callout import Address
    from gpuslice.sim.apiserver.calls import Attributes
    from gpuslice.sim.apiserver.kinds import Kind
    from gpuslice.sim.apiserver.store import Store
    from gpuslice.sim.apiserver.webhooks import Webhook

Json = dict[str, Any]


class WebhookAdmission:
    """Asks the webhooks and policies that the store's objects configure.

    Args:
        store: holds the configurations and the namespaces.
        resolve: finds the address of a service from its namespace, name and port; without one,
            only webhooks with a `url` can be called.
    """

    def __init__(
        self, store: Store, *, resolve: Callable[[str, str, int], Address] | None = None
    ) -> None:
        self._store = store
        self._resolve = resolve
        self._callout = Callout()
        self._mutating: tuple[Webhook, ...] = ()
        self._validating: tuple[Webhook, ...] = ()
        self._policies: tuple[policies.Policy, ...] = ()
        for kind in (MUTATING_HOOKS, VALIDATING_HOOKS, POLICIES, POLICY_BINDINGS):
            store.observe(kind.resource, self._configure)

    def close(self) -> None:
        self._callout.close()

    def _configure(self) -> None:
        self._mutating = webhooks.read(self._objects(MUTATING_HOOKS), is_mutating=True)
        self._validating = webhooks.read(self._objects(VALIDATING_HOOKS), is_mutating=False)
        self._policies = policies.read(self._objects(POLICIES), self._objects(POLICY_BINDINGS))

    def _objects(self, kind: Kind) -> list[Mapping[str, Any]]:
        return [stored.content for stored in self._store.select(kind.resource)[0]]

    def _namespace_labels(self, namespace: str) -> Mapping[str, str]:
        return labels_of(self._namespace(namespace) or {})

    def _namespace(self, name: str) -> Json | None:
        stored = self._store.get(NAMESPACES.resource, "", name) if name else None
        return None if stored is None else dict(stored.content)

    def mutate(self, attributes: Attributes) -> Json | None:
        """Let the mutating webhooks change the object.

        A webhook with `reinvocationPolicy: IfNeeded` is called once more when one after it
        changed the object. One that was skipped at first stays skipped.

        Raises:
            ApiError: when a webhook denies, fails without its failures being ignored, or returns
                a patch that can't be applied.
        """
        called: set[tuple[str, str]] = set()
        again: set[tuple[str, str]] = set()
        for hook in self._mutating:
            if not hook.is_called(attributes, self._namespace_labels):
                continue
            changed = self._call_mutating(hook, attributes)
            if changed is not attributes:
                attributes = changed
                again |= called
                called = set()
            if hook.is_reinvoked:
                called.add(hook.identity)
        for hook in self._mutating:
            if hook.identity in again and hook.is_called(attributes, self._namespace_labels):
                attributes = self._call_mutating(hook, attributes)
        return attributes.content

    def _call_mutating(self, hook: Webhook, attributes: Attributes) -> Attributes:
        """Call one webhook; the very same attributes come back when it changed nothing."""
        verdict = self._ask(hook, attributes)
        if verdict is None or verdict.patch is None or attributes.content is None:
            return attributes
        try:
            patched = patching.apply_json_patch(attributes.content, orjson.loads(verdict.patch))
            content = decode(attributes.kind, patched)
        except (patching.PatchError, orjson.JSONDecodeError, failures.ApiError) as err:
            # The webhook has answered: its failurePolicy, which is about calls, doesn't help.
            raise failures.internal(str(err)) from err
        if content == attributes.content:
            return attributes
        return replace(attributes, content=attributes.default(content))

    def validate(self, attributes: Attributes) -> None:
        """Let policies and validating webhooks judge the object.

        Raises:
            ApiError: when one denies, or fails without its failures being ignored.
        """
        for policy in self._policies:
            policy.check(attributes, self._namespace_labels, self._namespace)
        for hook in self._validating:
            if hook.is_called(attributes, self._namespace_labels):
                self._ask(hook, attributes)

    def _ask(self, hook: Webhook, attributes: Attributes) -> reviews.Verdict | None:
        verdict = hook.ask(attributes, self._callout, self._resolve)
        if verdict is None:
            return None
        for warning in verdict.warnings:
            attributes.warn(warning)
        if not verdict.allowed:
            raise reviews.denial(hook.name, verdict.status)
        return verdict
