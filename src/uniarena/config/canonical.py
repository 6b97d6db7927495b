"""The one pass over a source that turns every accepted spelling into the canonical one; no alias outlives it.

Each source (file, map, override) passes by itself, before it is merged with what came earlier: a later source
replaces a key whatever its spelling there, while two spellings of one key inside one source are a conflict.
"""

from __future__ import annotations

from typing import Any

from uniarena import registry
from uniarena.config import answers
from uniarena.config.aliases import COMPONENT_KEYS, KEYS, canonical_name, home_of
from uniarena.config.components import (
    component,
    components,
    is_name,
    name_of,
    network,
    not_a_map,
    plain_value,
    schedule,
)
from uniarena.config.errors import ConfigError, Faults, Location, closest, listed, squash
from uniarena.config.schema import SECTIONS
from uniarena.config.section import Origin, Section, find, join
from uniarena.config.wording import given

# A section given as a bare word or number: the key it stands for.
_SHORT = {
    "experiment": "name",
    "environment": "id",
    "agent": "type",
    "learner": "type",
    "distributed": "backend",
}
_TYPED = {"agent.explorer": "explorer", "agent.buffer": "buffer"}
_LISTS = {
    "environment.wrappers": "wrapper",
    "callbacks": "callback",
    "experiment.loggers": "logger",
    "agent.intrinsic": "bonus",
}
_GATHERED = {
    squash(word)
    for word in ("rollout_length", "rollout_fragment_length", "rollout_steps", "train_batch_size")
}


def canonical(tree: Section, base: Section) -> Section:
    """A source in canonical spelling.

    Args:
        tree: the source as it was written.
        base: the earlier sources, merged and canonical; says what an override like `learner.lr=…` is about.

    Raises:
        ConfigError: unknown or planned keys, one key under two spellings, a contradiction; all at once.
    """
    return _Pass(tree, base).run()


class _Pass:
    def __init__(self, tree: Section, base: Section) -> None:
        self.tree, self.base = tree, base
        self.out = Section(location=tree.location)
        self.origins: dict[str, Origin] = {}
        self.faults = Faults()

    def run(self) -> Section:
        for key, value in self.tree.items():
            with self.faults.gather():
                self._entry("", key, value, Origin(str(key), self.tree.where(key)))
        self._check_intervals()
        self.faults.check()
        return self.out

    def _entry(self, section: str, key: Any, value: Any, origin: Origin) -> None:
        """One key of a section whose keys are known."""
        if not isinstance(key, str):
            raise ConfigError(
                f"a key must be text, got {given(key)}", origin.spelling, origin.location, "quote the key"
            )
        if answers.refuse(section, key, value, origin):
            return
        target = KEYS[section].get(squash(key))
        if target is None and section in (
            "training",
            "agent",
        ):  # everything about learning in one section: a habit
            moved = KEYS["learner"].get(squash(key), "")
            target = moved if moved.startswith("learner.") else None
            answers.refuse("learner", key, value, origin)
        if target is None:
            raise _unknown(section, key, origin)
        self._visit(target, value, origin)

    def _visit(self, path: str, value: Any, origin: Origin) -> None:
        """Bring a value to its canonical path."""
        if path == "learner.type" or (path == "learner" and is_name(value)):
            self._learner_type(value, origin)
        elif path == "learner":
            self._learner(value, origin)
        elif path == "learner.optimizer":
            self._optimizer(value, origin)
        elif path in ("agent.policy", "agent.value"):
            if isinstance(value, Section):
                self._open(path, origin.location)
            for key, entry, at in network(path, value, origin, find(self.base, f"{path}.network")[0]):
                with self.faults.gather():
                    self._put(join(path, key), entry, at)
        elif path == "agent.memory":
            answers.refuse_memory(value, origin)
        elif path in _TYPED:
            self._put(path, component(_TYPED[path], path, value, origin, self.base), origin)
        elif path in _LISTS:
            self._put(path, components(_LISTS[path], path, value, origin, self.base, self.faults), origin)
        elif path in SECTIONS:
            self._section(path, value, origin)
        elif path.startswith("learner."):
            self._put(path, schedule(value, origin), origin)
        else:
            self._put(path, plain_value(path, value, origin), origin)

    def _section(self, path: str, value: Any, origin: Origin) -> None:
        if value is None:
            return
        if is_name(value) and path in _SHORT:
            value = Section({_SHORT[path]: value}, origin.location)
        if not isinstance(value, Section):
            raise not_a_map(path, value, origin)
        self._open(path, origin.location)
        if path == "training":
            value = self._train_batch(value, origin)
        for key, entry in value.items():
            with self.faults.gather():
                self._entry(path, key, entry, origin.under(value, key))

    # -- the learner -----------------------------------------------------------------------------------------
    def _learner(self, value: Any, origin: Origin) -> None:
        """The learner's keys; those of a learner that is not built in are its own business."""
        if value is None:
            return
        if not isinstance(value, Section):
            raise not_a_map("learner", value, origin)
        self._open("learner", origin.location)
        ours = self._is_built_in(value)
        for key, entry in value.items():
            with self.faults.gather():
                at = origin.under(value, key)
                target = KEYS["learner"].get(squash(str(key)))
                if ours and isinstance(key, str):
                    answers.refuse("learner", key, entry, at)
                if target and (ours or key == "type"):
                    self._visit(target, entry, at)
                else:
                    self._put(join("learner", key), schedule(entry, at) if ours else entry, at)

    def _is_built_in(self, section: Section) -> bool:
        """Whether this source, or else an earlier one, names a built-in learner, or nobody names one."""
        names = [
            value for key, value in section.items() if KEYS["learner"].get(squash(str(key))) == "learner.type"
        ]
        for key, value in self.tree.items():
            if KEYS[""].get(squash(str(key))) == "agent":
                entries = value.items() if isinstance(value, Section) else [("type", value)]
                names += [
                    entry for k, entry in entries if KEYS["agent"].get(squash(str(k))) == "learner.type"
                ]
        name = names[0] if names else find(self.base, "learner.type")[0]
        return name is None or (
            isinstance(name, str) and canonical_name("learner", name) in registry.BUILT_IN["learner"]
        )

    def _learner_type(self, value: Any, origin: Origin) -> None:
        """`agent.type` and `learner.type` mean the same; saying it twice is fine, a contradiction is not."""
        name = name_of("learner", value, origin)
        first, before = self.origins.get("learner.type"), find(self.out, "learner.type")[0]
        if first is None:
            self._put("learner.type", name, origin)
        elif before != name:
            message = f"{origin.spelling} says {name}, but {first} says {before}"
            raise ConfigError(
                message, origin.spelling, origin.location, "keep one of them: either implies the other"
            )

    def _optimizer(self, value: Any, origin: Origin) -> None:
        """The optimiser's section; its learning rate is the learner's."""
        section = component("optimizer", "learner.optimizer", value, origin, self.base)
        if isinstance(section, Section) and not isinstance(section.get("type", "adam"), str):
            raise ConfigError(
                f"expected a name, got {given(section['type'])}", origin.spelling, section.where("type")
            )
        lr = (
            [key for key in value if COMPONENT_KEYS["optimizer"].get(squash(str(key))) == "lr"]
            if isinstance(value, Section)
            else []
        )
        rest = section.without("lr", *lr) if section is not None else None
        for key in lr:
            at = origin.under(value, key)
            self._put("learner.learning_rate", schedule(value[key], at), at)
        if rest or not lr:
            self._put("learner.optimizer", rest, origin)

    def _train_batch(self, section: Section, origin: Origin) -> Section:
        """`training.batch_size` beside `rollout_length` is the train batch; alone it could be either."""
        key = next((key for key in section if squash(str(key)) == "batchsize"), None)
        if key is None:
            return section
        at = origin.under(section, key)
        beside = any(squash(str(other)) in _GATHERED for other in section)
        with self.faults.gather():
            if not beside and find(self.base, "learner.train_batch_size")[0] is None:
                raise ConfigError(
                    "could be the minibatch of one gradient step or the batch gathered for one update",
                    at.spelling,
                    at.location,
                    "write learner.batch_size (minibatch), "
                    "or learner.train_batch_size (gathered from several rollouts)",
                )
            self._put("learner.train_batch_size", section[key], at)
        return section.without(key)

    def _check_intervals(self) -> None:
        """An interval in epochs and one in environment steps for the same thing contradict each other."""
        for name in ("log", "save", "eval"):
            epochs, steps = f"training.{name}_interval", f"training.{name}_every_env_steps"
            if find(self.out, epochs)[0] is not None and find(self.out, steps)[0] is not None:
                one, other = self.origins[epochs], self.origins[steps]
                message = f"given twice: in optimisation epochs as {one} and in environment steps as {other}"
                self.faults.add(message, steps, other.location, "keep one of the two")

    def _put(self, path: str, value: Any, origin: Origin) -> None:
        """Write a value at its canonical path, once."""
        first = self.origins.get(path)
        if first is not None:
            raise ConfigError(
                f"given twice: as {first} and as {origin}", path, origin.location, "keep one of the two"
            )
        self.origins[path] = origin
        section, _, key = path.rpartition(".")
        self._open(section, origin.location).put(key, value, origin.location)

    def _open(self, path: str, place: Location | None) -> Section:
        """The section at a path, made where it is not there yet."""
        here = self.out
        for name in path.split(".") if path else []:
            if not isinstance(here.get(name), Section):
                here.put(name, Section(location=place), place)
            here = here[name]
        return here


def _unknown(section: str, key: str, origin: Origin) -> ConfigError:
    prefix = f"{section}." if section else ""
    names = [
        path.removeprefix(prefix) for path in dict.fromkeys(KEYS[section].values()) if path.startswith(prefix)
    ]
    if not section:
        names = list(SECTIONS)
    near, home = closest(key, KEYS[section]), home_of(section, key)
    if home:
        hint = f"this belongs elsewhere: {home}"
    elif near:
        hint = f"write {KEYS[section][near].removeprefix(prefix)}"
    elif section == "environment":
        hint = f"an argument of the environment itself goes under environment.kwargs: {{{key}: …}}"
    else:
        hint = "remove it, or move it into the section it belongs to"
    message = f"unknown {'key' if section else 'section'} {key!r}; known here: {listed(names, 24)}"
    return ConfigError(message, origin.spelling, origin.location, hint)
