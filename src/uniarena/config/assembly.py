"""`component`: from a section that names a component to the component and its parsed config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uniarena import registry
from uniarena.config.aliases import COMPONENT_KEYS, LEARNER_KEYS, canonical_name
from uniarena.config.answers_off_policy import notes
from uniarena.config.errors import ConfigError, Faults, listed
from uniarena.config.fields import field_types
from uniarena.config.parse import parse
from uniarena.config.schema import Experiment
from uniarena.config.section import Section, join
from uniarena.config.wording import given


def component(kind: str, section: Mapping[str, Any] | str | type, path: str) -> tuple[Any, Any]:
    """Look a component up and parse its keys.

    Args:
        kind: registry kind, such as `callback`.
        section: a map with `type` and the component's keys, or its name or class alone.
        path: config path of the section, for messages.

    Returns:
        The component (class or preset) and an instance of its `Config` (None if it declares none).

    Raises:
        ConfigError: unknown or broken component, or wrong keys; with file and line if they are known.
    """
    if isinstance(section, str | type):
        section = Section({"type": section})
    section = Section(section)
    name, where = section.get("type"), section.where("type")
    if name is None:
        raise ConfigError(
            f"no {kind} is named",
            join(path, "type"),
            where,
            f"add type: one of {', '.join(registry.names(kind))}",
        )
    if isinstance(name, str):
        try:
            found = registry.lookup(kind, canonical_name(kind, name))
        except registry.RegistryError as error:
            raise ConfigError(str(error.args[0]), join(path, "type"), where, error.hint) from error
    elif callable(name):
        found = name
    else:
        raise ConfigError(f"expected the name of a {kind}, got {given(name)}", join(path, "type"), where)
    if not callable(found) or (kind == "learner" and not hasattr(found, "default_parts")):
        raise ConfigError(
            f"{name} is no {kind}: it is {found!r}",
            join(path, "type"),
            where,
            "name a subclass of uniarena.Learner" if kind == "learner" else "name a class",
        )
    keys = section.without("type", *(("regularizers",) if kind == "learner" else ()))
    schema = getattr(found, "Config", None)
    if schema is not None:
        if kind == "learner" and isinstance(name, str):
            _check_left_over(name, schema, keys, path)
        return found, parse(schema, keys, path)
    if keys:
        key = next(iter(keys))
        raise ConfigError(
            f"{name} takes no keys, got {key!r}",
            join(path, key),
            keys.where(key),
            "give it a Config, or remove the key",
        )
    return found, None


def _check_left_over(name: str, schema: type, keys: Section, path: str) -> None:
    """Keys that other learners have and this one lacks: what stays behind when the algorithm is exchanged.

    Raises:
        ConfigError: all of them at once, with the faults of the other keys.
    """
    learner, known = canonical_name("learner", name), field_types(schema)
    left = [
        key for key, value in keys.items() if key in LEARNER_KEYS and key not in known and value is not None
    ]
    if learner not in registry.BUILT_IN["learner"] or not left:
        return
    owners = [
        other
        for other in registry.BUILT_IN["learner"]
        if set(left) & set(field_types(registry.lookup("learner", other).Config))
    ]
    places = [keys.where(key) for key in left]
    lines = [str(place.line) for place in places if place and place.line]
    where = f" (line{'s' if len(lines) > 1 else ''} {', '.join(lines)})" if len(lines) == len(left) else ""
    message = [f"{learner} has no {', '.join(left)}{where}; these are settings of {listed(owners, 4)}"]
    hint = f"remove {'it' if len(left) == 1 else 'them'}; on the command line: " + " ".join(
        f"{path}.{key}=null" for key in left
    )
    faults = Faults()
    faults.add("\n".join(message + notes(learner, left)), join(path, left[0]), places[0], hint)
    with faults.gather():
        parse(schema, keys.without(*left), path)
    faults.check()


def brought_parts(learner: Any, memory: Any) -> dict[str, dict[str, Any]]:
    """Sections of `agent` that a learner class brings, by name; with memory, replay is of sequences.

    Args:
        memory: the section `agent.memory`, or None.
    """
    parts: dict[str, dict[str, Any]] = getattr(learner, "default_parts", {})
    if memory and parts.get("buffer", {}).get("type") == "replay":
        return {**parts, "buffer": {"type": "sequence"}}
    return parts


def of_data(section: Section, learner: Any) -> Section:
    """The section `data` as that of the buffer that holds it: of sequences where the learner is from sequences."""
    try:
        name = canonical_name("learner", learner) if isinstance(learner, str) else learner
        parts = brought_parts(registry.lookup("learner", name), None)
    except registry.RegistryError:
        parts = {}  # `check_components` tells
    rows = parts.get("buffer", {}).get("type") != "sequence"
    whole = Section(section)
    whole.put("type", section.get("type", "dataset" if rows else "dataset_sequence"), section.where("type"))
    return whole


REGULARIZERS = "learner.regularizers"


def regularizers(experiment: Experiment) -> list[Section]:
    """The sections of what is added to the loss of the learner's policy; every learner takes them."""
    return list(experiment.learner.get("regularizers") or ())


def _brought(experiment: Experiment, kind: str, section: Section) -> Section:
    """A section without a type, with that of the part that the learner brings."""
    name = experiment.learner.get("type")
    if not isinstance(name, str) or not registry.known("learner", name):
        return section
    parts = brought_parts(
        registry.lookup("learner", canonical_name("learner", name)), experiment.agent.memory
    )
    whole = Section(section)
    whole.put("type", parts.get(kind, {}).get("type"), None)
    return whole


def check_components(experiment: Experiment) -> None:
    """Import every component that a config names and parse its keys, before anything is built or written.

    Networks are left to whoever builds them, since their keys depend on the module.

    Raises:
        ConfigError: everything wrong with them at once, with file and line.
    """
    agent, environment = experiment.agent, experiment.environment
    named: list[tuple[str, str, Section]] = [("learner", "learner", experiment.learner)]
    for kind in ("explorer", "buffer", "memory"):
        section = getattr(agent, kind)
        if section:
            named.append(
                (kind, f"agent.{kind}", section if "type" in section else _brought(experiment, kind, section))
            )
    if experiment.data is not None:
        named.append(("buffer", "data", of_data(experiment.data, experiment.learner.get("type"))))
    for kind, path, sections in (
        ("bonus", "agent.intrinsic", agent.intrinsic),
        ("regularizer", REGULARIZERS, regularizers(experiment)),
        ("wrapper", "environment.wrappers", environment.wrappers),
        ("callback", "callbacks", experiment.callbacks),
        ("logger", "experiment.loggers", experiment.experiment.loggers),
    ):
        alone = kind == "bonus" and len(sections) == 1
        named += [(kind, path if alone else join(path, i), section) for i, section in enumerate(sections)]
    faults = Faults()
    with experiment.locating():
        with faults.gather():
            _refuse_own_steps(experiment)
        for kind, path, section in named:
            with faults.gather():
                if not (kind == "wrapper" and _of_gymnasium(section["type"])):
                    if path == "agent.buffer":
                        _check_replay_left_over(experiment, section)
                    component(kind, section, path)
        faults.check()


def _refuse_own_steps(experiment: Experiment) -> None:
    """Refuse data for a learner of ours that brings a buffer of rollouts, which only the present policy can make.

    Raises:
        ConfigError: with what to do with the data.
    """
    name = experiment.learner.get("type")
    name = canonical_name("learner", name) if isinstance(name, str) else name
    if experiment.data is None or not isinstance(name, str) or name not in registry.BUILT_IN["learner"]:
        return
    if brought_parts(registry.lookup("learner", name), None).get("buffer", {}).get("type") != "rollout":
        return
    raise ConfigError(
        f"{name} learns from the steps of its own policy, and cannot learn from data that others made",
        "learner.type",
        experiment.locate("learner.type"),
        f"learn from the data by bc or iql; or begin {name} as a clone of it: `stages: [{{name: clone, learner: bc, "
        f"data: …}}, {{name: finetune, learner: {name}}}]`; or leave `data` out and add a term to its loss, "
        "`learner.regularizers: [{type: behavior_cloning, data: PATH, weight: 0.1}]`",
    )


def _check_replay_left_over(experiment: Experiment, section: Section) -> None:
    """Settings of replay that stay behind when an on-policy learner takes the place of another.

    Raises:
        ConfigError: naming them.
    """
    given_here: Mapping[str, Any] = experiment.agent.buffer or {}
    replay = COMPONENT_KEYS["buffer"].values()
    left = [key for key in section if key in replay and key not in ("type", "train_batch_size")]
    if "type" not in given_here and section.get("type") == "rollout" and left:
        raise ConfigError(
            f"{', '.join(left)}: settings of replay; {experiment.learner['type']} learns from rollouts",
            "agent.buffer",
            section.where(left[0]),
            "remove the section; on the command line: agent.buffer=null",
        )


def _of_gymnasium(name: Any) -> bool:
    """Whether a wrapper is a class of gymnasium's kind, whose constructor alone knows its keys."""
    try:
        found = registry.lookup("wrapper", canonical_name("wrapper", name)) if isinstance(name, str) else name
    except registry.RegistryError:
        return False  # `component` says what is wrong
    return any(base.__module__.split(".")[0] == "gymnasium" for base in getattr(found, "__mro__", ()))
