# SPDX-License-Identifier: Apache-2.0
"""The webhooks that configurations name, in the order in which they are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuslice.sim.apiserver import conditions, failures, reviews
from gpuslice.sim.apiserver.callout import CalloutError, endpoint
from gpuslice.sim.apiserver.matching import Match

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuslice.sim.apiserver.callout import Address, Callout
    from gpuslice.sim.apiserver.calls import Attributes
    from gpuslice.sim.apiserver.matching import NamespaceLabels

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """One entry of a configuration."""

    name: str
    configuration: str
    is_mutating: bool
    match: Match
    match_conditions: tuple[Mapping[str, str], ...]
    client: Mapping[str, Any]
    timeout_seconds: float
    ignores_failure: bool
    is_reinvoked: bool

    @property
    def identity(self) -> tuple[str, str]:
        return (self.configuration, self.name)

    def is_called(self, attributes: Attributes, namespace_labels: NamespaceLabels) -> bool:
        """Say whether this webhook is about a write.

        Raises:
            ApiError: 403 when a condition is an error and failures aren't ignored.
        """
        if not self.match.holds(attributes, namespace_labels):
            return False
        if not self.match_conditions:
            return True
        variables = {
            "object": attributes.content,
            "oldObject": attributes.before,
            "request": reviews.request(attributes),
        }
        try:
            return conditions.all_hold(self.match_conditions, variables)
        except conditions.ConditionError as err:
            if self.ignores_failure:
                return False
            target = attributes.target
            raise failures.forbidden(target.kind, target.name, str(err)) from err

    def ask(
        self,
        attributes: Attributes,
        callout: Callout,
        resolve: Callable[[str, str, int], Address] | None,
    ) -> reviews.Verdict | None:
        """Call the webhook.

        Returns:
            Its verdict, or None when the call failed and failures are ignored.

        Raises:
            ApiError: 500 when the call failed and failures aren't ignored.
        """
        uid, body = reviews.question(attributes)
        try:
            target = endpoint(self.client, resolve)
            answer = callout.post(target, body, timeout_seconds=self.timeout_seconds)
            return reviews.verdict(answer, uid, is_mutating=self.is_mutating)
        except (CalloutError, reviews.ReviewError) as err:
            if self.ignores_failure:
                return None
            step = "failed to call webhook: " if isinstance(err, CalloutError) else ""
            raise failures.internal(f'failed calling webhook "{self.name}": {step}{err}') from err


def read(configurations: Iterable[Mapping[str, Any]], *, is_mutating: bool) -> tuple[Webhook, ...]:
    """List the webhooks of all configurations: by the configuration's name, then as listed."""
    ordered = sorted(configurations, key=lambda one: str(one["metadata"]["name"]))
    return tuple(
        Webhook(
            name=hook["name"],
            configuration=configuration["metadata"]["name"],
            is_mutating=is_mutating,
            match=Match.read(hook),
            match_conditions=tuple(hook.get("matchConditions") or ()),
            client=hook["clientConfig"],
            timeout_seconds=float(hook["timeoutSeconds"]),
            ignores_failure=hook["failurePolicy"] == "Ignore",
            is_reinvoked=hook.get("reinvocationPolicy") == "IfNeeded",
        )
        for configuration in ordered
        for hook in configuration.get("webhooks") or ()
    )
