# SPDX-License-Identifier: Apache-2.0
"""CEL, as `matchConditions` and admission policies use it.

The evaluator is Google's own for C++, whose `has()`, `in`, null and absent keys mean what they
mean in Kubernetes. It isn't needed before the first condition is evaluated, and is imported then.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

VARIABLES = ("object", "oldObject", "request", "params", "namespaceObject", "variables")
_EXTENSIONS = """
name: kubernetes
extensions:
- name: optional
- name: strings
- name: lists
- name: sets
- name: bindings
"""


class ConditionError(Exception):
    """An expression that can't be compiled, or has no value for this object."""


@lru_cache(maxsize=1)
def _cel() -> ModuleType:
    # Imported here: it is an optional dependency, and only clusters with conditions need it.
    # It ships no types that mypy would take.
    from cel_expr_python import cel  # type: ignore[import-untyped]  # noqa: PLC0415

    module: ModuleType = cel
    return module


@lru_cache(maxsize=1)
def _environment() -> Any:
    cel = _cel()
    return cel.NewEnv(
        config=cel.NewEnvConfigFromYaml(_EXTENSIONS),
        variables=dict.fromkeys(VARIABLES, cel.Type.DYN),
    )


@lru_cache(maxsize=512)
def _program(expression: str) -> Any:
    try:
        return _environment().compile(expression)
    except RuntimeError as err:
        raise ConditionError(f"compilation failed: {err}") from err


def check(expression: str) -> str:
    """Say what is wrong with an expression's text; empty when nothing is."""
    try:
        _program(expression)
    except ConditionError as err:
        return str(err)
    return ""


def evaluate(expression: str, variables: Mapping[str, Any]) -> Any:
    """Evaluate an expression.

    Args:
        expression: CEL.
        variables: values by name, of VARIABLES; those left out are null.

    Raises:
        ConditionError: when it can't be compiled, or evaluates to an error.
    """
    data = dict.fromkeys(VARIABLES) | dict(variables)
    try:
        value = _program(expression).eval(data=data)
    except RuntimeError as err:
        raise ConditionError(str(err)) from err
    if value.type() == _cel().Type.ERROR:
        raise ConditionError(str(value.value()))
    return value.value()


def holds(expression: str, variables: Mapping[str, Any]) -> bool:
    """Evaluate an expression that must be true or false.

    Raises:
        ConditionError: also when it is neither.
    """
    value = evaluate(expression, variables)
    if not isinstance(value, bool):
        raise ConditionError(f"{expression!r} is no boolean: {value!r}")
    return value


def all_hold(conditions: Sequence[Mapping[str, str]], variables: Mapping[str, Any]) -> bool:
    """Evaluate matchConditions: one that is false decides, whatever errors the others have.

    Raises:
        ConditionError: when none is false and one is an error.
    """
    errors = []
    for condition in conditions:
        try:
            if not holds(condition["expression"], variables):
                return False
        except ConditionError as err:
            errors.append(f"{condition.get('name', '')}: {err}")
    if errors:
        raise ConditionError("; ".join(errors))
    return True
