"""Text to values: YAML 1.2 numbers, the line of every key, no key twice, plain data only; JSON too."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from uniarena.config.errors import ConfigError, Location
from uniarena.config.section import Items, Section

_SURROGATES = re.compile(r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.I)
_TAG = "tag:yaml.org,2002:"
# A config is small; anchors that multiply into more than this are an attack or an accident.
_MOST_NODES = 200_000

# YAML 1.2 numbers (3e-4 is one, 1_000_000 too, 010 is ten, 1:30 and dates are text) with YAML 1.1's switches.
_NUMBERS = {
    f"{_TAG}int": r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+|0o[0-7]+",
    f"{_TAG}float": r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))"
    r"(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
}


def from_text(text: str, name: str, is_json: bool = False) -> Section:
    """The map that a text of YAML (or JSON) holds.

    Args:
        name: what messages call the text: a file as the user would write it.

    Raises:
        ConfigError: broken syntax, a key twice, tags that build objects, or no map; with the line.
    """
    if is_json:
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            message = f"not JSON: {getattr(error, 'msg', error)}"
            raise ConfigError(message, line=Location(name, getattr(error, "lineno", 0))) from None
        # What JSON has and YAML lacks: tabs between tokens (strings hold no raw ones), pairs of surrogates.
        text = _SURROGATES.sub(_character, text.replace("\t", " "))
    tree = _build(text, name)
    if tree is None:
        hint = "begin with `environment: {id: CartPole-v1}` and `learner: {type: ppo}`"
        raise ConfigError("empty; expected a map of sections", line=Location(name), hint=hint)
    if not isinstance(tree, Section):
        what = "a list" if isinstance(tree, list) else "a single value"
        message = f"expected a map of sections, got {what}"
        raise ConfigError(message, line=Location(name, 1), hint="begin with `environment:`")
    return tree


def _character(match: re.Match[str]) -> str:
    pair = bytes.fromhex(match[2] + match[3]).decode("utf-16-be")
    return match[1] + pair


def value_of(text: str, place: Location) -> Any:
    """The value that follows the = of an override, read as YAML; nothing reads as null.

    Raises:
        ConfigError: broken syntax.
    """
    try:
        return _build(text, place)
    except ConfigError as error:
        message = error.faults[0].message.splitlines()[0]
        raise ConfigError(message, line=place, hint="quote the value: key='\"…\"'") from None


def _build(text: str, name: str | Location) -> Any:
    import yaml

    try:
        root = yaml.compose(text, Loader=_loader())
        return None if root is None else _Builder(name).build(root)
    except RecursionError:
        raise ConfigError("nested too deeply", line=_location(name, None)) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "broken syntax"
        rows = text.splitlines()
        row = rows[mark.line] if mark is not None and mark.line < len(rows) else ""
        shown = f"\n{row}\n{' ' * mark.column}^" if mark is not None and 0 < len(row.strip()) < 100 else ""
        raise ConfigError(
            f"not YAML: {problem}{shown}", "", _location(name, mark), _hint(problem, row)
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {error}".splitlines()[0], line=_location(name, None)) from None


def _location(name: str | Location, mark: Any) -> Location:
    if isinstance(name, Location):
        return name
    return Location(name, 0 if mark is None else mark.line + 1)


@cache
def resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """First character → (tag, pattern): how a plain scalar is read."""
    from yaml.resolver import Resolver

    gone = {*_NUMBERS, f"{_TAG}timestamp"}
    table = {
        c: [(t, p) for t, p in pairs if t not in gone]
        for c, pairs in Resolver.yaml_implicit_resolvers.items()
    }
    for tag, pattern in _NUMBERS.items():
        for first in "-+0123456789.":
            table.setdefault(first, []).append((tag, re.compile(f"(?:{pattern})\\Z")))
    return table


@cache
def _loader() -> Any:
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return type("Loader", (base,), {"yaml_implicit_resolvers": resolvers()})


def _hint(problem: str, row: str) -> str:
    if "\t" in row:
        return "indent with spaces: YAML takes no tabs"
    if "another document" in problem:
        return "one file holds one config: remove the line ---"
    if "mapping values are not allowed" in problem:
        return "a value that contains ': ' needs quotes; or the line above is indented differently"
    if "undefined alias" in problem:
        return "define it first: &name"
    if re.match(r"\s*[\w-]+:\S", row):
        return "leave a space after the colon"
    return "check brackets, quotes and indentation around that line"


class _Builder:
    """Nodes to values, with the line of every key and entry. Plain data only, no tags that build objects."""

    def __init__(self, name: str | Location) -> None:
        self.name = name
        self.nodes = 0
        self.open: set[int] = set()

    def build(self, node: Any) -> Any:
        """The value of a node."""
        self.nodes += 1
        if self.nodes > _MOST_NODES or id(node) in self.open:
            raise self._fault(node, "an anchor repeats without end", "remove the alias (*name)")
        kind = type(node).__name__
        if kind == "ScalarNode":
            return self._scalar(node)
        if node.tag != _TAG + ("map" if kind == "MappingNode" else "seq"):
            raise self._not_plain(node)
        self.open.add(id(node))
        try:
            return self._mapping(node) if kind == "MappingNode" else self._sequence(node)
        finally:
            self.open.discard(id(node))

    def _mapping(self, node: Any) -> Section:
        out = Section(location=self._place(node))
        merged: list[Any] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                value = self.build(value_node)
                merged += value if isinstance(value, list) else [value]
                continue
            key, place = self.build(key_node), self._place(key_node)
            if isinstance(key, dict | list):
                hint = "a value that begins with { or [ needs quotes"
                raise self._fault(key_node, "a key must be text, got a map or a list", hint)
            if key in out:
                message = f"the key {key!r} stands here twice, first at {out.where(key)}"
                raise self._fault(key_node, message, "remove one of them")
            out.put(key, self.build(value_node), place)
        for section in merged:
            if not isinstance(section, Section):
                raise self._fault(node, "<<: takes a map or a list of maps")
            for key in section:
                if key not in out:
                    out.put(key, section[key], section.where(key))
        return out

    def _sequence(self, node: Any) -> Items:
        return Items([self.build(entry) for entry in node.value], map(self._place, node.value))

    def _scalar(self, node: Any) -> Any:
        text, tag = node.value, node.tag.removeprefix(_TAG)
        try:
            if tag == "null":
                return None
            if tag == "bool":
                return text.lower() in ("true", "yes", "on")
            if tag == "int":
                return _int(text)
            if tag == "float":
                return float(re.sub(r"^([-+]?)\.(inf|nan)$", r"\1\2", text.replace("_", "").lower()))
        except ValueError:
            raise self._fault(node, f"{text[:40]!r} does not read as a number") from None
        if tag in ("str", "merge", "value"):
            return str(text)
        raise self._not_plain(node)

    def _place(self, node: Any) -> Location:
        return _location(self.name, node.start_mark)

    def _fault(self, node: Any, message: str, hint: str = "") -> ConfigError:
        return ConfigError(message, line=self._place(node), hint=hint)

    def _not_plain(self, node: Any) -> ConfigError:
        tag = node.tag.replace(_TAG, "!!")
        return self._fault(node, f"the tag {tag} is not plain data", "remove the tag")


def _int(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").replace("_", "").lower()
    return sign * (int(digits, 0) if digits[:2] in ("0x", "0o") else int(digits))
