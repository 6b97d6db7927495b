"""Sections that name a component, in canonical spelling: part of the pass in `canonical.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from uniarena import registry
from uniarena.config import answers
from uniarena.config.aliases import (
    COMPONENT_KEYS,
    NETWORK_KEYS,
    canonical_name,
    canonical_value,
    closest_name,
)
from uniarena.config.answers_off_policy import explain
from uniarena.config.errors import ConfigError, Faults, listed, squash
from uniarena.config.section import Items, Origin, Patch, Section, find, join
from uniarena.config.wording import given

_OF_DATA = (("regularizer", "data"), ("buffer", "demonstrations"))
"""Sections of data, for which a path alone will do."""


def name_of(kind: str, value: Any, origin: Origin) -> Any:
    """A component's canonical name; a class given from Python stays one.

    Raises:
        ConfigError: no such component, with the nearest one.
    """
    path, where = origin.spelling, origin.location
    if not isinstance(value, str):
        if value is None or isinstance(value, bool | int | float | Mapping | list):
            raise ConfigError(f"expected the name of a {kind}, got {given(value)}", path, where)
        return value
    name = canonical_name(kind, value)
    if ":" in name or registry.known(kind, name):
        return name
    choices = registry.names(kind)
    answers.refuse_name(kind, value, choices, origin)
    near = closest_name(kind, value, choices)
    dotted, _, last = value.rpartition(".")
    if near:
        hint = f"write {near}"
    elif dotted:
        hint = f"an import path has a colon before the name: {dotted}:{last}"
    else:
        hint = f"write one of these, or the import path of your own {kind}, package.module:Name"
    raise ConfigError(f"there is no {kind} {value!r}; known: {listed(choices, 24)}", path, where, hint)


def component(kind: str, path: str, value: Any, origin: Origin, base: Section) -> Section | None:
    """A component's section: canonical `type`, and canonical keys if it is built in (others know their own).

    Args:
        value: a name, a class, or a map.
        base: earlier sources; says which component an override without a `type` is about.
    """
    if value is None:
        return None
    if is_name(value):
        value = Section({"type": value}, origin.location)
    if not isinstance(value, Section):
        raise not_a_map(path, value, origin)
    value = _single_key(kind, value)
    if kind == "buffer":
        answers.refuse_buffer(value, origin)
    table = COMPONENT_KEYS.get(kind, {})
    typed = (
        "type"
        if "type" in value
        else next((key for key in value if table.get(squash(str(key))) == "type"), None)
    )
    found = (
        find(base, f"{path}.type")[0]
        if typed is None
        else name_of(kind, value[typed], origin.under(value, typed))
    )
    ours = found is None or (isinstance(found, str) and found in registry.BUILT_IN[kind])
    out = Section(location=value.location)
    spelled: dict[Any, Origin] = {}
    for key, entry in value.items():
        at = origin.under(value, key)
        target = "type" if key == typed else table.get(squash(str(key)), key) if ours else key
        first = spelled.setdefault(target, at)
        if first is not at:
            raise ConfigError(
                f"given twice: as {first} and as {at}", join(path, target), at.location, "keep one of the two"
            )
        entry = _inner(kind, target, entry, at) if ours else entry
        out.put(target, found if target == "type" else entry, at.location)
    return out


def _inner(kind: str, key: str, value: Any, origin: Origin) -> Any:
    """What stands inside a component's key: hindsight (switched on or off), data, and values that move."""
    if kind == "regularizer" and key == "weight":
        return schedule(value, origin)
    if (kind, key) in _OF_DATA and isinstance(value, str):
        return Section({"path": value}, origin.location)
    name = {("buffer", "her"): "her", ("explorer", "epsilon"): "decay", ("explorer", "sigma"): "decay"}.get(
        (kind, key)
    )
    if name == "her" and isinstance(value, bool):
        return Section(location=origin.location) if value else None
    if name is None or not isinstance(value, Section):
        return value
    out, table = Section(location=value.location), COMPONENT_KEYS[name]
    for inner, entry in value.items():
        at, target = origin.under(value, inner), table.get(squash(str(inner)), inner)
        explain(str(inner), entry, None, at)
        if target in out:
            raise ConfigError(
                f"given twice, the second time as {at}", origin.spelling, at.location, "keep one"
            )
        out.put(target, entry, at.location)
    return out


def components(kind: str, path: str, value: Any, origin: Origin, base: Section, faults: Faults) -> Any:
    """A list of components. One alone may stand without a list; an override may address one by index."""
    if isinstance(value, Patch):
        patched = Patch(location=value.location)
        for index, entry in value.items():
            at = origin.under(value, index)
            patched.put(index, component(kind, join(path, index), entry, at, base), at.location)
        return patched
    if kind == "bonus" and (value is None or is_name(value) or isinstance(value, Section)):
        return component(
            kind, path, value, origin, base
        )  # one bonus stays a map, so that overrides reach its keys
    if value is None or is_name(value):
        value = Items([] if value is None else [value], [] if value is None else [origin.location])
    if isinstance(value, Section):
        value = Items([value], [origin.location])
    if not isinstance(value, list | tuple):
        raise ConfigError(
            f"expected a list of names or maps, got {given(value)}", origin.spelling, origin.location
        )
    found = Items()
    for index, entry in enumerate(value):
        line = value.lines[index] if isinstance(value, Items) else None
        at = Origin(join(origin.spelling, index), line or origin.location)
        with faults.gather():
            for part in _expanded(kind, entry):
                section = component(kind, join(path, index), part, at, Section())
                if section is None or "type" not in section:
                    raise ConfigError(
                        f"expected a name, or a map with a type; got {given(part)}",
                        at.spelling,
                        at.location,
                        "add type: …",
                    )
                found.append(section)
                found.lines.append(at.location)
    return found


def network(path: str, value: Any, origin: Origin, before: Any) -> list[tuple[Any, Any, Origin]]:
    """The keys of `agent.policy` or `agent.value` as (key, value, origin); a user's module keeps its own.

    Args:
        before: the network known from earlier sources, for a section that does not name one.
    """
    if value is None:
        return []
    if is_name(value):
        value = Section({"network": value}, origin.location)
    if not isinstance(value, Section):
        raise not_a_map(path, value, origin)
    typed = (
        "network"
        if "network" in value
        else next((k for k in value if NETWORK_KEYS.get(squash(str(k))) == "network"), None)
    )
    name = before if typed is None else name_of("network", value[typed], origin.under(value, typed))
    ours = name is None or (isinstance(name, str) and name in registry.BUILT_IN["network"])
    found = []
    for key, entry in value.items():
        target = "network" if key == typed else NETWORK_KEYS.get(squash(str(key)), key) if ours else key
        if key == typed:
            entry = name
        elif ours and isinstance(entry, str) and target in ("activation", "distribution"):
            entry = canonical_value(target, entry)
        found.append((target, entry, origin.under(value, key)))
    return found


def schedule(value: Any, origin: Origin) -> Any:
    """A learner's value; schedules get canonical types and keys. `lin_3e-4` is the zoo's linear decay."""
    if isinstance(value, str):
        zoo = re.fullmatch(r"lin_(\d[\d.]*(?:e[+-]?\d+)?)", value, re.I)
        return (
            Section({"type": "linear", "start": float(zoo[1]), "end": 0.0}, origin.location) if zoo else value
        )
    if not isinstance(value, Section):
        return value
    typed = next((key for key in value if COMPONENT_KEYS["schedule"].get(squash(str(key))) == "type"), None)
    name = value.get(typed)
    if isinstance(name, str):
        answers.refuse_name("schedule", name, registry.names("schedule"), origin.under(value, typed))
        if canonical_name("schedule", name) in registry.BUILT_IN["schedule"]:
            return component("schedule", "", value, origin, Section())
    return value


def plain_value(path: str, value: Any, origin: Origin) -> Any:
    """Values with spellings of their own: vectorisation, masks, devices, durations."""
    if path == "environment.vectorization" and isinstance(value, str):
        return canonical_value(path, value).lower()
    if path == "environment.action_mask" and value is None:
        return "none"
    if path == "training.device" and isinstance(value, str):
        return re.sub(r"^(gpu|rocm)(?=:|$)", "cuda", value.lower())
    if path == "training.max_wall_time" and isinstance(value, str):
        return _seconds(value, origin)
    return value


def is_name(value: Any) -> bool:
    """Whether a value names a component by itself: a text, or from Python a class or a factory."""
    return isinstance(value, str) or callable(value)


def not_a_map(path: str, value: Any, origin: Origin) -> ConfigError:
    """The error for a list or a scalar where a map is due."""
    key = path.rpartition(".")[2]
    hint = f"write `{key}:` and the keys below it"
    if isinstance(value, list | tuple) and value and all(isinstance(entry, Mapping) for entry in value):
        hint = "remove the dashes: the keys stand one below the other"
    elif isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str):
        hint = f"write {key}: {value[0]}"
    return ConfigError(f"expected a map of keys, got {given(value)}", origin.spelling, origin.location, hint)


def _single_key(kind: str, section: Section) -> Section:
    """`- FrameStack: {n_frames: 4}` means `- {type: FrameStack, n_frames: 4}`."""
    if len(section) != 1:
        return section
    ((name, inner),) = section.items()
    own = isinstance(name, str) and squash(name) in COMPONENT_KEYS.get(kind, {})
    if own or not isinstance(name, str) or not isinstance(inner, Section | None):
        return section
    if not registry.known(kind, canonical_name(kind, name)):
        return section
    out = Section(inner or {}, section.where(name))
    out.put("type", name, section.where(name))
    return out


def _expanded(kind: str, entry: Any) -> list[Any]:
    """What an entry of a list stands for: VecNormalize is two wrappers; statistics, always kept, are none."""
    if kind == "wrapper" and isinstance(entry, str):
        if squash(entry) == "vecnormalize":
            return ["normalize_observation", "normalize_reward"]
        if squash(entry) in answers.NEEDLESS_WRAPPERS:
            return []
    return [entry]


def _seconds(text: str, origin: Origin) -> float:
    units = re.fullmatch(
        r"\s*(?:(\d+)\s*d)?\s*(?:(\d+)\s*h)?\s*(?:(\d+)\s*m(?:in)?)?\s*(?:(\d+)\s*s)?\s*", text
    )
    clock = re.fullmatch(r"(\d+):([0-5]\d):([0-5]\d)", text)
    if units and any(units.groups()):
        return float(
            sum(int(n or 0) * unit for n, unit in zip(units.groups(), (86400, 3600, 60, 1), strict=True))
        )
    if clock:
        return float(int(clock[1]) * 3600 + int(clock[2]) * 60 + int(clock[3]))
    try:
        return float(text)
    except ValueError:
        hint = "write seconds, or text such as 1h30m or 01:30:00"
        raise ConfigError(
            f"expected a duration, got {text!r}", origin.spelling, origin.location, hint
        ) from None
