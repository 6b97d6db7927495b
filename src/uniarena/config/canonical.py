"""The one pass over a source that turns every accepted spelling into the canonical one; no alias outlives it.

Each source (file, map, override) passes by itself, before it is merged with what came earlier: a later source
replaces a key whatever its spelling there, while two spellings of one key inside one source are a conflict.
"""

from __future__ import annotations

from typing import Any

from uniarena import registry
from uniarena.config import answers
from uniarena.config.aliases import COMPONENT_KEYS, KEYS, canonical_name, home_of
from uniarena.config.answers_off_policy import explain
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
from uniarena.config.spellings import BY_LEARNER
from uniarena.config.wording import given

# A section given as a bare word or number: the key it stands for.
_SHORT = {
    "experiment": "name",
    "environment": "id",
    "agent": "type",
    "learner": "type",
    "sampling": "type",
    "distributed": "backend",
}
_TYPED = {"agent.explorer": "explorer", "agent.buffer": "buffer", "agent.memory": "memory"}
_LISTS = {
    "environment.wrappers": "wrapper",
    "callbacks": "callback",
    "experiment.loggers": "logger",
    "agent.intrinsic": "bonus",
    "learner.regularizers": "regularizer",
}
_OPEN = (
    "agent.policy",
    "agent.value",
    "agent.explorer",
    "agent.buffer",
    "agent.memory",
    "agent.intrinsic",
    "learner.optimizer",
)
_PARTS = ("agent.buffer.", "agent.explorer.")  # where keys lead that other libraries have in the learner
_GATHERED = {
    squash(word)
    for word in ("rollout_length", "rollout_fragment_length", "rollout_steps", "train_batch_size")
}


def canonical(tree: Section, base: Section, misspelt: Faults | None = None) -> Section:
    """A source in canonical spelling.

    Args:
        tree: the source as it was written.
        base: the earlier sources, merged and canonical; says what an override like `learner.lr=…` is about.
        misspelt: takes misspelt sections whose keys could be read nevertheless, so that the caller can look
            further; None: they are raised with the rest.

    Raises:
        ConfigError: unknown or planned keys, one key under two spellings, a contradiction; all at once.
    """
    return _Pass(tree, base).run(misspelt)


class _Pass:
    def __init__(self, tree: Section, base: Section) -> None:
        self.tree, self.base = tree, base
        self.out = Section(location=tree.location)
        self.origins: dict[str, Origin] = {}
        self.faults, self.misspelt = Faults(), Faults()
        self.parts: list[tuple[str, Any, Origin]] = []
        self.named: str | None = None

    def run(self, misspelt: Faults | None) -> Section:
        for key, value in self.tree.items():
            with self.faults.gather():
                self._entry("", key, value, Origin(str(key), self.tree.where(key)), self.tree)
        for path, value, origin in self.parts:
            with self.faults.gather():
                self._part(path, value, origin)
        self._check_intervals()
        if misspelt is None or self.faults.found:
            self.faults.found[:0] = self.misspelt.found
        else:
            misspelt.found += self.misspelt.found
        self.faults.check()
        return self.out

    def _entry(self, section: str, key: Any, value: Any, origin: Origin, beside: Section) -> None:
        """One key of a section whose keys are known; `beside` is the section."""
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
            target = moved if moved.startswith(("learner.", *_PARTS)) else None
            answers.refuse("learner", key, value, origin)
            if explain(key, value, self.learner, origin):
                return
        if target is None:
            error, near = _unknown(section, key, origin)
            if not isinstance(value, Section) or near not in (*SECTIONS, *_OPEN):
                raise error
            if self._is_there(section, near, beside):
                raise error
            self.misspelt.found.extend(error.faults)  # what stands below is read as if it were spelt right
            target = near
        self._visit(target, value, origin)

    @staticmethod
    def _is_there(section: str, path: str, beside: Section) -> bool:
        """Whether a key of a section, in any spelling, leads to this path."""
        return any(KEYS[section].get(squash(str(key))) == path for key in beside)

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
        elif path in _TYPED:
            if path == "agent.memory":
                if value is False or value == {}:
                    value = None
                answers.refuse_replay(value, origin)
            answers.refuse_gaussian(path, value, self.learner, origin)
            self._put(path, component(_TYPED[path], path, value, origin, self.base), origin)
        elif path in _LISTS:
            self._put(path, components(_LISTS[path], path, value, origin, self.base, self.faults), origin)
        elif path == "data":
            self._data(value, origin)
        elif path in SECTIONS:
            self._section(path, value, origin)
        elif path.startswith("learner."):
            self._setting(path, value, origin)
        elif path.startswith(_PARTS):
            self.parts.append((path, value, origin))
        else:
            self._put(path, plain_value(path, value, origin), origin)

    def _section(self, path: str, value: Any, origin: Origin) -> None:
        if value is None:
            if path == "environment":  # a run from data may take away what a recipe names
                self._put("environment.id", None, origin)
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
                self._entry(path, key, entry, origin.under(value, key), value)

    def _data(self, value: Any, origin: Origin) -> None:
        """The keys of data, which are those of the buffer that holds it; a path alone will do."""
        if value is None:
            return self._put("data", None, origin)
        if is_name(value):
            value = Section({"path": value}, origin.location)
        if not isinstance(value, Section):
            raise not_a_map("data", value, origin)
        self._open("data", origin.location)
        for key, entry in value.items():
            with self.faults.gather():
                self._put(join("data", key), entry, origin.under(value, key))

    # -- the learner -----------------------------------------------------------------------------------------
    def _learner(self, value: Any, origin: Origin) -> None:
        """The learner's keys; those of a learner that is not built in are its own business."""
        if value is None:
            return
        if not isinstance(value, Section):
            raise not_a_map("learner", value, origin)
        self._open("learner", origin.location)
        self.named = name = self._named(value)
        ours = name is None or name in registry.BUILT_IN["learner"]
        for key, entry in value.items():
            with self.faults.gather():
                at = origin.under(value, key)
                target = KEYS["learner"].get(squash(str(key)))
                if ours and isinstance(key, str):
                    answers.refuse("learner", key, entry, at)
                    if explain(key, entry, name, at):
                        continue
                if target and (ours or key == "type" or target in _LISTS):
                    self._visit(target, entry, at)
                else:
                    self._put(join("learner", key), schedule(entry, at) if ours else entry, at)

    @property
    def learner(self) -> str | None:
        """Canonical name of the learner that this source, or else an earlier one, names."""
        if self.named:
            return self.named
        written = [value for key, value in self.tree.items() if KEYS[""].get(squash(str(key))) == "learner"]
        section = written[0] if written else None
        if is_name(section):
            section = Section({"type": section})
        return self._named(section if isinstance(section, Section) else Section())

    def _named(self, section: Section) -> str | None:
        """The same, where `section` is the source's section `learner`; a class from Python goes by its name."""
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
        return canonical_name("learner", name) if isinstance(name, str) else name and str(name)

    def _setting(self, path: str, value: Any, origin: Origin) -> None:
        """A setting of a built-in learner; `ent_coef: auto_0.1` of Stable-Baselines3 is two of them."""
        path = BY_LEARNER.get(self.learner or "", {}).get(path, path)
        first = str(value).removeprefix("auto_") if path == "learner.alpha" else str(value)
        if first != str(value):
            self._put("learner.alpha_init", first, origin)
            value = "auto"
        self._put(path, schedule(value, origin), origin)

    def _part(self, path: str, value: Any, origin: Origin) -> None:
        """A setting of the buffer or the explorer that stood in the learner's section."""
        top = ".".join(path.split(".")[:2])
        section, _, key = path.rpartition(".")
        found = find(self.out, section)[0]
        if top in self.origins and (
            (isinstance(found, Section) and key in found) or not isinstance(found, Section | None)
        ):
            first = self.origins[top]
            raise ConfigError(
                f"given twice: in {first} and as {origin}", path, origin.location, "keep one of the two"
            )
        self._put(path, value, origin)

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


def _unknown(section: str, key: str, origin: Origin) -> tuple[ConfigError, str]:
    """The error for a key that is unknown, and the path that was likely meant, or nothing."""
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
    meant = KEYS[section][near] if near and not home else ""
    return ConfigError(message, origin.spelling, origin.location, hint), meant
