"""Runs in stages: `stages` is a list of names with sections of their own, over those that the file's stages share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from uniarena.config.canonical import canonical
from uniarena.config.errors import ConfigError, Fault, Faults, Location, closest, listed
from uniarena.config.merging import merge
from uniarena.config.schema import Experiment, Stage
from uniarena.config.section import Items, Patch, Section, find, join
from uniarena.config.wording import given

STAGES = "stages"
OWN = ("environment", "agent", "learner", "sampling", "data", "training", "callbacks")
"""Sections that a stage may have."""
_DEMONSTRATIONS = "agent.buffer.demonstrations"


@dataclass(frozen=True)
class _Entry:
    """A stage as it was written: `own` is canonical, `broken` says that not all of it could be read."""

    name: str
    own: Section
    location: Location | None
    broken: bool = False


class Stages:
    """The stages of a config while its sources are read, each after the one before it.

    Attributes:
        entries: those of the sources so far.
    """

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self._faults = Faults()

    @property
    def given(self) -> bool:
        """Whether there are any, be they right or wrong."""
        return bool(self.entries or self._faults.found)

    def take(self, tree: Section, shared: Section, override: bool = False) -> None:
        """Read the stages of a source: a list of all of them, or changes of some by number or name.

        Args:
            tree: the source.
            shared: the sections that stages share, of all sources up to this one.
            override: whether it is one value of the command line.
        """
        if STAGES not in tree:
            return
        value, where = tree[STAGES], tree.where(STAGES)
        if isinstance(value, Section) and (self.entries or override):
            for key, change in value.items():
                with self._faults.gather():
                    index = self._index(key, value, isinstance(value, Patch))
                    self.entries[index] = self._read(index, change, value.where(key), shared, True)
        elif isinstance(value, list | tuple):
            lines = value.lines if isinstance(value, Items) else [where] * len(value)
            self.entries = []
            for index, (entry, line) in enumerate(zip(value, lines, strict=True)):
                with self._faults.gather():
                    self.entries.append(self._read(index, entry, line or where, shared, False))
        elif value is None:
            self.entries = []
        else:
            names = [str(key) for key in value][:2] if isinstance(value, Section) else []
            first, second = names if len(names) == 2 else ("pretrain", "finetune")
            hint = f"write a list, in their order: stages: [{{name: {first}, …}}, {{name: {second}, …}}]"
            self._faults.add(f"expected a list of stages, got {given(value)}", STAGES, where, hint)

    def _index(self, key: Any, section: Section, counted: bool) -> int:
        names = [entry.name for entry in self.entries]
        if counted and key < len(names):
            return int(key)
        if key in names:
            return names.index(key)
        near = closest(str(key), names)
        raise ConfigError(
            f"there is no stage {key!r}; there are {listed(names) or 'none'}",
            join(STAGES, key),
            section.where(key),
            f"write {join(STAGES, near)}" if near else "give a list of stages first",
        )

    def _read(self, index: int, entry: Any, where: Location | None, shared: Section, change: bool) -> _Entry:
        path = join(STAGES, index)
        if not isinstance(entry, Section):
            raise ConfigError(
                f"expected a map with a name and sections, got {given(entry)}", path, where, "write {name: …}"
            )
        before = self.entries[index] if change else None
        base = Section() if before is None else before.own
        name = entry.get("name", None if before is None else before.name)
        faults = Faults()
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
            said = "a stage needs a name" if name is None else f"expected a name, got {given(name)}"
            hint = "letters, digits, - and _: a folder is called so"
            faults.add(said, join(path, "name"), entry.where("name"), hint)
        elif any(other.name == name for k, other in enumerate(self.entries) if k != index):
            faults.add(
                f"there are two stages {name}", join(path, "name"), entry.where("name"), "rename one of them"
            )
        own = Section(location=where)
        with faults.gather():
            try:
                own = canonical(entry.without("name"), merge(_over(shared, base), base))
            except ConfigError as error:
                raise error.beneath(path, lambda at: where) from None
        for key in own:
            if key not in OWN:
                said = f"a stage has no section of its own {key!r}; it may have {listed(OWN)}"
                faults.add(
                    said, join(path, key), own.where(key), "move it to the top, where all stages share it"
                )
        if index and find(own, "agent.init_from")[0] is not None:
            said = "a stage starts as the agent of the one before it"
            faults.add(said, join(path, "agent.init_from"), find(own, "agent.init_from")[1], "remove the key")
        self._faults.found += faults.found
        return _Entry(str(name), merge(base, own), where, bool(faults.found))

    def refuse_hidden(self, override: Section) -> None:
        """Refuse to change what stages share where a stage has its own: nobody would see that nothing changed."""
        for path, where in _leaves(override):
            for entry in self.entries:
                if find(entry.own, path)[0] is not None:
                    said = f"stage {entry.name} has its own, which this would not change"
                    self._faults.add(said, path, where, f"write {STAGES}.{entry.name}.{path}=…")

    def build(self, shared: Section, misspelt: Faults, build: Callable[[Section], Experiment]) -> Experiment:
        """The whole run.

        Raises:
            ConfigError: everything wrong with any stage.
        """
        found: list[Experiment] = []
        faults: dict[int, Sequence[Fault]] = {}
        for index, entry in enumerate(self.entries):
            if not entry.broken:
                try:
                    found.append(build(self._tree(index, shared)))
                except ConfigError as error:
                    faults[index] = error.faults
        misspelt.found += self._faults.found
        misspelt.found += placed(faults, [entry.own for entry in self.entries], shared)
        misspelt.check()
        whole = Section(shared)
        entries = [Section({"name": e.name, **e.own}, e.location) for e in self.entries]
        for section, entry in zip(entries, self.entries, strict=True):
            section.lines = dict(entry.own.lines)
        whole.put(
            STAGES, Items(entries, [entry.location for entry in self.entries]), self.entries[0].location
        )
        pairs = list(zip(self.entries, found, strict=True))
        notices = [f"stage {entry.name}: {text}" for entry, exp in pairs for text in exp.notices]
        stages = tuple(Stage(entry.name, exp, entry.own) for entry, exp in pairs)
        return replace(found[-1], stages=stages, notices=tuple(notices), source=whole)

    def _tree(self, index: int, shared: Section) -> Section:
        """All sections of a stage."""
        own = self.entries[index].own
        base = _over(shared, own)
        agent = base.get("agent")
        if index and isinstance(agent, Section) and "init_from" in agent:
            base = Section(base)
            base.put("agent", agent.without("init_from"), base.where("agent"))
        tree = merge(base, own)
        shown = find(tree, _DEMONSTRATIONS)[0]
        if isinstance(shown, Section) and "path" not in shown:
            earlier = [merge(shared, entry.own).get("data") for entry in self.entries[:index]]
            data = next((each for each in reversed(earlier) if isinstance(each, Section)), None)
            if data is not None:
                tree = _with(tree, _DEMONSTRATIONS.split("."), merge(data.without("type"), shown))
        return tree


def placed(faults: Mapping[int, Sequence[Fault]], own: Sequence[Section], shared: Section) -> list[Fault]:
    """Faults of stages, by number, with the paths at which what is wrong is written: in a stage, or for all of them.

    Args:
        own: what each stage has by itself.
        shared: what they share.
    """
    everywhere = [set(faults.get(index, ())) for index in range(len(own))]
    common = set.intersection(*everywhere) if len(own) > 1 else set()
    found = []
    for index, several in faults.items():
        for fault in several:
            elsewhere = find(own[index], fault.path)[0] is None and find(shared, fault.path)[0] is not None
            top = fault in common or elsewhere or not fault.path
            found.append(fault if top else replace(fault, path=f"{STAGES}.{index}.{fault.path}"))
    return list(dict.fromkeys(found))


def _over(shared: Section, own: Section) -> Section:
    """What a stage's sections lie over: settings of one learner mean nothing to another."""
    named = find(own, "learner.type")[0]
    return shared.without("learner") if named not in (None, find(shared, "learner.type")[0]) else shared


def _leaves(tree: Section, path: str = "") -> Iterator[tuple[str, Location | None]]:
    for key, value in tree.items():
        if isinstance(value, Section) and value:
            yield from _leaves(value, join(path, key))
        else:
            yield join(path, key), tree.where(key)


def _with(tree: Section, keys: Sequence[str], value: Section) -> Section:
    """A copy with another section at a path that is there."""
    copy, where = Section(tree), tree.where(keys[0])
    copy.put(keys[0], value if len(keys) == 1 else _with(tree[keys[0]], keys[1:], value), where)
    return copy
