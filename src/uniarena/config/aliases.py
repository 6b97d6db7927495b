"""Look-ups in the table of spellings. Only `canonical.py` applies them, once, at load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from uniarena import registry
from uniarena.config import spellings, spellings_offline
from uniarena.config.errors import closest, squash
from uniarena.config.fields import field_types
from uniarena.config.schema import SECTIONS


def _words(table: Mapping[str, str]) -> dict[str, str]:
    return {squash(word): name for name, words in table.items() for word in words.split(",") if word}


def _keys(table: Mapping[str, str], fields: Iterable[str], section: str = "") -> dict[str, str]:
    """Squashed spelling → canonical path; the section's own fields are spellings of themselves."""
    own = {squash(name): f"{section}.{name}" if section else name for name in fields}
    return _words(table) | own


LEARNER = spellings.LEARNER | spellings_offline.LEARNER
LEARNER_KEYS = tuple(path.partition(".")[2] for path in LEARNER if path.startswith("learner."))

KEYS: dict[str, dict[str, str]] = {
    "": _keys(spellings.TOP | spellings_offline.TOP, SECTIONS),
    "experiment": _keys(spellings.EXPERIMENT, field_types(SECTIONS["experiment"]), "experiment"),
    "environment": _keys(spellings.ENVIRONMENT, field_types(SECTIONS["environment"]), "environment"),
    "agent": _keys(spellings.AGENT, field_types(SECTIONS["agent"]), "agent"),
    "learner": _keys(LEARNER, LEARNER_KEYS, "learner"),
    "sampling": _keys(spellings.SAMPLING, field_types(SECTIONS["sampling"]), "sampling"),
    "training": _keys(spellings.TRAINING, field_types(SECTIONS["training"]), "training"),
    "distributed": _keys(spellings.DISTRIBUTED, field_types(SECTIONS["distributed"]), "distributed"),
}
NETWORK_KEYS = _keys(spellings.NETWORK, spellings.NETWORK)
_COMPONENT = spellings.COMPONENT | spellings_offline.COMPONENT
COMPONENT_KEYS = {kind: _keys(keys, keys) for kind, keys in _COMPONENT.items()}
_NAMES = {**spellings.NAMES, "learner": spellings.NAMES["learner"] | spellings_offline.NAMES}
_NAMES["regularizer"] = spellings_offline.REGULARIZERS
ENDINGS = spellings.ENDINGS | spellings_offline.ENDINGS
NAMES = {kind: _keys(names, names) for kind, names in _NAMES.items()}
VALUES = {key: _keys(values, values) for key, values in spellings.VALUES.items()}


def canonical_name(kind: str, name: str) -> str:
    """The registered name that a spelling stands for; the spelling itself where there is none."""
    if ":" in name or name in registry.BUILT_IN[kind]:
        return name
    word = squash(name)
    ends = [word.removesuffix(ending) for ending in ENDINGS[kind] if word.endswith(ending)]
    candidates = [word, *(end for end in ends if end)]
    built_in = {squash(known): known for known in registry.BUILT_IN[kind]}
    for spelling in candidates:
        found = built_in.get(spelling) or NAMES.get(kind, {}).get(spelling)
        if found:
            return found
    others = {squash(known): known for known in registry.names(kind)}
    return next((others[spelling] for spelling in candidates if spelling in others), name)


def closest_name(kind: str, name: str, choices: Iterable[str]) -> str | None:
    """The registered name most likely meant by one that is unknown; other spellings count too."""
    known = dict(NAMES.get(kind, {}))
    for choice in choices:
        known |= {squash(choice) + ending: choice for ending in ("", *ENDINGS[kind])}
    near = closest(name, known)
    return known[near] if near and known[near] in choices else None


def canonical_value(key: str, value: str) -> str:
    """The value that a spelling stands for, at a key whose values have several spellings."""
    return VALUES[key].get(squash(value.rpartition(".")[2]), value)


def meant(key: str, names: Iterable[str]) -> str | None:
    """The one of `names` that `key` is another spelling of."""
    choices, word = {squash(name): name for name in names}, squash(key)
    learner = {spelling: path.rpartition(".")[2] for spelling, path in KEYS["learner"].items()}
    for table in (*COMPONENT_KEYS.values(), NETWORK_KEYS, learner):
        target = squash(table.get(word, ""))
        if target in choices:
            return choices[target]
    return choices.get(word)


def home_of(path: str, key: str) -> str | None:
    """Where a key that is unknown at `path` belongs, if there is exactly one such place."""
    word, here = squash(key), path.partition(".")[0]
    homes = {table[word] for section, table in KEYS.items() if section not in ("", here) and word in table}
    if word in NETWORK_KEYS and not path.startswith(("agent.policy", "agent.value")):
        homes.add(f"agent.policy.{NETWORK_KEYS[word]}")
    homes = {home for home in homes if home.rpartition(".")[0] != path}
    return homes.pop() if len(homes) == 1 else None
