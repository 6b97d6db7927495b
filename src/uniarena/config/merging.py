"""`merge`: what comes later over what came before."""

from __future__ import annotations

from typing import Any

from uniarena.config.errors import ConfigError
from uniarena.config.section import Items, Patch, Section, join
from uniarena.config.wording import given


def merge(base: Section, new: Section, path: str = "") -> Section:
    """Two canonical trees: maps join key by key, everything else is replaced by what came later."""
    out = Section(base, base.location or new.location)
    for key, value in new.items():
        here, old = join(path, key), base.get(key)
        if isinstance(value, Patch):
            value = _patched(old, value, here)
        elif isinstance(value, Section) and isinstance(old, Section) and not _replaces(old, value, here):
            value = merge(old, value, here)
        out.put(key, value, new.where(key))
        if path == "training" and value is not None:  # the other unit of the same interval no longer counts
            name, _, unit = key.partition("_")
            out.pop(
                {"interval": f"{name}_every_env_steps", "every_env_steps": f"{name}_interval"}.get(unit), None
            )
    return out


def _patched(old: Any, patch: Patch, path: str) -> Items:
    if not isinstance(old, list | tuple):
        what = "not there" if old is None else given(old)
        message = f"expected a list whose entries have numbers; it is {what}"
        raise ConfigError(message, path, patch.location, f"give the whole list: {path}=[…]")
    items = Items(old, old.lines if isinstance(old, Items) else ())
    for index, value in patch.items():
        if index >= len(items):
            raise ConfigError(
                f"there are {len(items)} entries, counted from 0", join(path, index), patch.location
            )
        before = items[index]
        both = isinstance(before, Section) and isinstance(value, Section)
        items[index] = merge(before, value, join(path, index)) if both else value
        items.lines[index] = items.lines[index] if both else patch.location
    return items


def _replaces(old: Section, value: Section, path: str) -> bool:
    """Whether a map takes the place of another as a whole. A schedule is one value, and its keys do not mix; neither do
    those of two kinds of memory.
    """
    if path == "agent.memory":
        return "type" in value and value["type"] != old.get("type")
    return path.startswith("learner.") and path != "learner.optimizer" and "type" in value
