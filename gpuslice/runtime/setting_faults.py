# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a settings file, in words that name key, value, allowed and example."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

import msgspec
import yaml

from gpuslice.contract.shares import ShareError, parse_share

if TYPE_CHECKING:
    from gpuslice.runtime.settings import Settings

_PLACE: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")


class SettingsError(ValueError):
    """A settings file, or an override, that can't be used.

    Args:
        message: complete, for people.
        field: the dotted key, empty where it is about the whole file; e.g. ``arbiter.maxWaiters``.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def read(path: Path) -> dict[str, Any]:
    """Return a YAML file's mapping, empty for an empty file.

    Raises:
        SettingsError: where it isn't there, no YAML, or something else than a mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as err:
        raise SettingsError(f"{path} can't be read: {err}") from err
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path} is no mapping of settings, such as `slicesPerGpu: 100`")
    return content


def parse_overrides(items: Sequence[str]) -> dict[str, Any]:
    """Return what ``--set key=value`` flags say; a value is read as YAML.

    Raises:
        SettingsError: for an item without ``=``, or whose value is no YAML.
    """
    found = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise SettingsError(f"{item!r} is no setting such as slicesPerGpu=100")
        try:
            found[key] = yaml.safe_load(value) if value else ""
        except yaml.YAMLError as err:
            raise SettingsError(f"{key}: {value!r} is no YAML", field=key) from err
    return found


def put(content: dict[str, Any], key: str, value: Any) -> None:
    """Set a value by its dotted key, in place.

    Raises:
        SettingsError: where a part of the key is no section.
    """
    *sections, last = key.split(".")
    for section in sections:
        inner = content.setdefault(section, {})
        if not isinstance(inner, dict):
            raise SettingsError(f"{key}: {section} is no section", field=key)
        content = inner
    content[last] = value


def spell_shares(content: dict[str, Any]) -> None:
    """Turn the numbers in `shares` into texts, in place: YAML reads 0.5 as a number."""
    shares = content.get("shares")
    if isinstance(shares, list):
        content["shares"] = [_spelled(each) for each in shares]


def _spelled(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return f"{Decimal(repr(value)).normalize():f}"


def explained(
    err: msgspec.ValidationError, content: Mapping[str, Any], root: type, source: str
) -> SettingsError:
    """Return an error with the key, its value, what is allowed and an example."""
    found = _PLACE.match(str(err))
    assert found is not None
    what, path = found["what"], (found["path"] or "$").removeprefix("$").removeprefix(".")
    if isinstance(err.__cause__, SettingsError):
        return SettingsError(f"{source}: {err.__cause__}", field=err.__cause__.field)
    if unknown := _UNKNOWN.search(what):
        return _unknown(unknown[1], path, root, source)
    value = _value_at(content, path)
    field = _field_at(root, path)
    allowed = _allowed(field) or what[0].lower() + what[1:].replace("`", "")
    example = _example(field)
    message = f"{source}: {path or 'the file'}: {value!r} is not allowed: {allowed}"
    return SettingsError(message + (f"; e.g. {example}" if example else ""), field=path)


def _unknown(name: str, path: str, root: type, source: str) -> SettingsError:
    section = _section_at(root, path)
    known = section.__struct_encode_fields__ if section else ()
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    if not near and path and name in getattr(root, "__struct_encode_fields__", ()):
        hint = f"{name} is one for the whole cluster: at the top of the file"
    key = f"{path}.{name}" if path else name
    return SettingsError(f"{source}: {key} is no setting: {hint}", field=key)


def _parts(path: str) -> list[str]:
    return [part for part in re.split(r"[.\[\]]+", path) if part]


def _value_at(content: Any, path: str) -> Any:
    for part in _parts(path):
        try:
            content = content[int(part)] if isinstance(content, list) else content[part]
        except (KeyError, IndexError, TypeError, ValueError):
            # msgspec writes [...] for an item of a list whose number it doesn't say.
            return content
    return content


def _section_at(root: Any, path: str) -> Any:
    for part in _parts(path):
        if part == "..." or part.isdigit():
            # An item of a list whose kind is known already.
            continue
        chosen = {each.encode_name: each.type for each in msgspec.structs.fields(root)}.get(part)
        if get_origin(chosen) is tuple:
            chosen = get_args(chosen)[0]
        if not (isinstance(chosen, type) and issubclass(chosen, msgspec.Struct)):
            return None
        root = chosen
    return root


def _field_at(root: Any, path: str) -> msgspec.structs.FieldInfo | None:
    parts = [part for part in _parts(path) if part != "..." and not part.isdigit()]
    section = _section_at(root, ".".join(parts[:-1])) if parts else None
    for each in msgspec.structs.fields(section) if section else ():
        if each.encode_name == parts[-1]:
            return each
    return None


def _metas(field: msgspec.structs.FieldInfo) -> list[msgspec.Meta]:
    extras = getattr(field.type, "__metadata__", ())
    return [extra for extra in extras if isinstance(extra, msgspec.Meta)]


def _allowed(field: msgspec.structs.FieldInfo | None) -> str:
    """Return what a setting says of its values, empty where msgspec says it well."""
    if field is None:
        return ""
    if get_origin(field.type) is Literal:
        return f"one of {', '.join(map(str, get_args(field.type)))}"
    return next((meta.description for meta in _metas(field) if meta.description), "")


def _example(field: msgspec.structs.FieldInfo | None) -> str:
    """Return an example of a setting: its own, or its default; empty where that says nothing."""
    if field is None:
        return ""
    for meta in _metas(field):
        for example in meta.examples or ():
            return str(example)
    if field.default in (msgspec.NODEFAULT, "") or isinstance(field.default, msgspec.Struct):
        return ""
    return msgspec.json.encode(field.default).decode()


def check(settings: Settings) -> None:
    """Check what no type says.

    Raises:
        SettingsError: naming the key.
    """
    try:
        rule = settings.slice_rule
    except ValueError as err:
        raise SettingsError(str(err), field=str(err).partition(":")[0]) from err
    for number, text in enumerate(settings.shares):
        key = f"shares[{number}]"
        try:
            share = parse_share(text)
        except ShareError as err:
            raise SettingsError(f"{key}: {err}", field=key) from err
        least = rule.smallest_fraction([settings.default_gpu_memory_mib])
        if share.fraction is not None and share.fraction < least:
            raise SettingsError(
                f"{key}: {text} is below the smallest share, one slice of {least}", field=key
            )
        if share.memory_mib is not None and share.memory_mib < settings.min_share_mib:
            raise SettingsError(
                f"{key}: {text} is below minShareMiB, {settings.min_share_mib}", field=key
            )
    if len(settings.shares) > settings.max_shares:
        raise SettingsError(
            f"shares: {len(settings.shares)} are more than maxShares, {settings.max_shares}",
            field="shares",
        )
    own = settings.device_plugin
    modes = {settings.mode, *(each.mode for each in own.overrides)}
    if "hami-core" in modes and not own.hami_core.library:
        raise SettingsError(
            "devicePlugin.hamiCore.library: the mode hami-core needs the path of libvgpu.so on the "
            "nodes; e.g. /usr/local/vgpu/libvgpu.so",
            field="devicePlugin.hamiCore.library",
        )
    if settings.whole_gpu_resource == settings.resource_name:
        raise SettingsError(
            f"wholeGpuResource: {settings.whole_gpu_resource} is resourceName already; "
            "e.g. nvidia.com/gpu",
            field="wholeGpuResource",
        )
