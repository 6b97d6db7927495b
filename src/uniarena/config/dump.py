"""`dump`: an experiment as canonical YAML that loads to the same experiment. Secrets are left out."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from uniarena.config.fields import as_mapping
from uniarena.config.schema import SECTIONS, Experiment
from uniarena.config.section import REDACTED, plain
from uniarena.config.text import resolvers

_SECRET = re.compile(
    r"(^|_)(password|passwd|passphrase|secrets?|credentials?|apikey|token|(api|access|private|auth|secret|license)_?key)(_|$)",
    re.I,
)
_WORDS_OF_TEXT = re.compile(
    r"(^|_)(eos|bos|pad|unk|sep|cls|mask|start|stop|end|begin)_token$", re.I
)  # of a vocabulary: no secret
_SHORTEST_SECRET = (
    8  # characters; shorter values of the environment are too common to be told from ordinary words
)


def dump(experiment: Experiment) -> str:
    """Canonical YAML of an experiment.

    `load` of the result gives an equal experiment. Texts under a key that names a secret, and texts that hold
    the value of an environment variable that does, are written as `<redacted>`; `load` then asks for them.
    """
    return dump_mapping(to_mapping(experiment))


def to_mapping(experiment: Experiment) -> dict[str, Any]:
    """The same as plain, JSON-ready data."""
    hidden = environment_secrets()
    tree = {}
    for name in ("experiment",) if experiment.stages else SECTIONS:
        value = getattr(experiment, name)
        if dataclasses.is_dataclass(value):
            value = {
                key: entry for key, entry in as_mapping(value).items() if not _is_empty_default(value, key)
            }
        tree[name] = _written(plain(value), hidden)
    if experiment.stages:  # as they were given: what they share stays in one place
        return tree | _written(plain(experiment.source.without("experiment")), hidden)
    if experiment.data is not None:
        tree["training"].pop("total_timesteps", None)  # it is counted in updates
    bonuses = tree["agent"].get("intrinsic", [])
    if len(bonuses) == 1:
        tree["agent"]["intrinsic"] = bonuses[0]
    return {name: section for name, section in tree.items() if section}


def dump_mapping(tree: Mapping[str, Any]) -> str:
    """YAML of plain data, in the given order, lists of scalars on one line."""
    import yaml

    return str(yaml.dump(tree, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=120))


def _is_empty_default(section: Any, key: str) -> bool:
    """Whether a key says nothing: null, or an empty text, list or map that is the default anyway."""
    value = getattr(section, key)
    default = next(field for field in dataclasses.fields(section) if field.name == key)
    made = default.default if default.default_factory is dataclasses.MISSING else default.default_factory()
    return value is None or (not value and not isinstance(value, bool | int | float) and value == made)


def _written(value: Any, hidden: set[str], key: str = "") -> Any:
    """Plain data without secrets and live objects."""
    if isinstance(value, Mapping):
        return {k: _written(entry, hidden, str(k)) for k, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_written(entry, hidden, key) for entry in value]
    if isinstance(value, str):
        return REDACTED if is_secret(key, value, hidden) else value
    if value is None or isinstance(value, bool | int | float):
        return value
    return _import_path(value)


def is_secret(key: str, value: str, hidden: set[str]) -> bool:
    """Whether a text must not be written down."""
    named = bool(_SECRET.search(key)) and not _WORDS_OF_TEXT.search(key)
    return bool(value) and (named or any(secret in value for secret in hidden))


def without_secrets(tree: Any, key: str = "") -> Any:
    """A copy of plain data with `<redacted>` in place of secrets; everything else stays as it is."""
    if isinstance(tree, Mapping):
        return {name: without_secrets(entry, str(name)) for name, entry in tree.items()}
    if isinstance(tree, list):
        return [without_secrets(entry, key) for entry in tree]
    return REDACTED if isinstance(tree, str) and is_secret(key, tree, environment_secrets()) else tree


def secrets_of(experiment: Experiment) -> list[str]:
    """The texts of a configuration that `dump` leaves out because their keys name secrets."""
    found: list[str] = []

    def visit(value: Any, key: str) -> None:
        if isinstance(value, Mapping):
            for name, entry in value.items():
                visit(entry, str(name))
        elif isinstance(value, list | tuple):
            for entry in value:
                visit(entry, key)
        elif isinstance(value, str) and is_secret(key, value, set()):
            found.append(value)

    for part in experiment.parts:
        for name in SECTIONS:
            section = getattr(part, name)
            visit(as_mapping(section) if dataclasses.is_dataclass(section) else section, name)
    return found


def environment_secrets() -> set[str]:
    """Values of environment variables whose names say that they are secret; very short ones are left out."""
    return {
        value for name, value in os.environ.items() if len(value) >= _SHORTEST_SECRET and _SECRET.search(name)
    }


def _import_path(value: Any) -> str:
    """A class or function given from Python, by the path it is imported from."""
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return f"{getattr(value, '__module__', '?')}:{name}"


@cache
def _dumper() -> Any:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes what the loader would read as something else, and what other YAML 1.1 readers would."""

    stock = yaml.SafeDumper.yaml_implicit_resolvers
    ours = resolvers()
    Dumper.yaml_implicit_resolvers = {c: [*ours.get(c, []), *stock.get(c, [])] for c in {*stock, *ours}}

    def sequence(dumper: Any, data: Any) -> Any:
        flat = not any(isinstance(entry, dict | list) for entry in data)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flat)

    Dumper.add_representer(list, sequence)
    Dumper.ignore_aliases = lambda self, data: True  # type: ignore[method-assign]
    return Dumper
