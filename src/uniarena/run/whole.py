"""A configuration with every key that it can have, as `--print-config` shows it and as runs are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from uniarena.assembly import FROM_TRAINING
from uniarena.config import (
    Experiment,
    Section,
    WorkersConfig,
    as_mapping,
    brought_parts,
    component,
    to_mapping,
)
from uniarena.config.assembly import of_data, regularizers
from uniarena.config.schema import SECTIONS
from uniarena.config.section import REDACTED, plain
from uniarena.optim import ScheduleConfig
from uniarena.registry import lookup
from uniarena.values.sections import whole_policy


def filled(exp: Experiment) -> dict[str, Any]:
    """A configuration as plain data with every default, secrets left out; it loads as the same configuration.

    Null is what a key is by default, or a whole section that is not there. Left alone are components named by import
    path, whose keys their own classes know.
    """
    if exp.stages:
        wholes = [{"name": stage.name, **filled(stage.exp)} for stage in exp.stages]
        shared = ("experiment", "distributed")
        own = [{name: value for name, value in whole.items() if name not in shared} for whole in wholes]
        return {**{name: wholes[0][name] for name in shared}, "stages": own}
    shown = to_mapping(exp)
    tree = {name: _section(getattr(exp, name), shown.get(name)) for name in SECTIONS}
    if exp.data is not None:
        tree["training"].pop("total_timesteps")  # such a run is counted in updates
        tree["data"] = _with_defaults("buffer", of_data(exp.data, exp.learner["type"]), tree["data"])
    tree["learner"] = _learner(exp, tree["learner"])
    _fill_agent(exp, tree["agent"])
    if exp.environment.vectorization == "async":
        tree["environment"]["workers"] = plain(as_mapping(exp.environment.workers or WorkersConfig()))
    places = (
        ("wrapper", tree["environment"], "wrappers", exp.environment.wrappers),
        ("logger", tree["experiment"], "loggers", exp.experiment.loggers),
        ("callback", tree, "callbacks", exp.callbacks),
    )
    for kind, section, key, given in places:
        section[key] = _listed(kind, given, section[key])
    return tree


def is_schedule(value: Any) -> bool:
    """Whether a map stands for a number that moves over the run."""
    return isinstance(value, Mapping) and {"type", "start", "end"} <= set(value)


def _section(section: Any, shown: Any) -> Any:
    """A section with all its keys; what a dump leaves out is null or empty."""
    if not dataclasses.is_dataclass(section):
        return [] if isinstance(section, tuple) and not shown else shown
    return {**plain(as_mapping(section)), **(shown or {})}


def _learner(exp: Experiment, shown: Mapping[str, Any]) -> dict[str, Any]:
    whole = _with_defaults("learner", exp.learner, shown)
    if isinstance(optimizer := whole.get("optimizer"), dict) and optimizer.get("lr", 0) is None:
        del optimizer["lr"]  # another name of learning_rate
    pairs = zip(regularizers(exp), shown.get("regularizers") or [], strict=True)
    return {**whole, "regularizers": [_with_defaults("regularizer", *pair) for pair in pairs]}


def _fill_agent(exp: Experiment, tree: dict[str, Any]) -> None:
    learner = lookup("learner", exp.learner["type"])
    brought = brought_parts(learner, exp.agent.memory)
    for kind in ("explorer", "buffer") if exp.data is None else ("explorer",):
        given = dict(getattr(exp.agent, kind) or {})
        whole = given if "type" in given else {**brought.get(kind, {}), **given}
        tree[kind] = _with_defaults(kind, whole, tree[kind] or {})
    if exp.agent.memory:
        tree["memory"] = _with_defaults("memory", exp.agent.memory, tree["memory"])
    if exp.agent.intrinsic:
        shown = tree["intrinsic"] if isinstance(tree["intrinsic"], list) else [tree["intrinsic"]]
        bonuses = _listed("bonus", exp.agent.intrinsic, shown)
        tree["intrinsic"] = bonuses if len(bonuses) > 1 else bonuses[0]
    build = getattr(learner, "build_model", None)
    policy = whole_policy(build, exp.agent.policy, exp.agent.value)
    tree["policy"] = tree["policy"] if policy is None else plain(as_mapping(policy))
    tree["value"] = tree["value"] or None  # then it is as the policy


def _listed(kind: str, given: Sequence[Section], shown: Sequence[Mapping[str, Any]]) -> list[Any]:
    """A list of components; those that are known by name with all their keys."""
    return [
        _with_defaults(kind, section, told) if _is_ours(kind, section["type"]) else told
        for section, told in zip(given, shown, strict=True)
    ]


def _is_ours(kind: str, name: Any) -> bool:
    """Whether a component can be filled in: it is known by name, and no other section says what it leaves out."""
    if not isinstance(name, str) or ":" in name:
        return False
    found = lookup(kind, name)
    return hasattr(found, "Config") and found not in FROM_TRAINING


def _with_defaults(kind: str, section: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    """A component's keys, all of them; `shown` is what a dump shows of the section, without secrets."""
    cfg = component(kind, section, kind)[1]
    whole = {} if cfg is None else _plainly(plain(as_mapping(cfg)))
    hidden = {key: value for key, value in shown.items() if value == REDACTED}
    name = shown.get("type", section.get("type"))
    return {**({"type": name} if name is not None else {}), **whole, **hidden}


def _plainly(value: Any) -> Any:
    """Plain data whose schedules have a type, both ends, and of the rest what is not the default."""
    if isinstance(value, Mapping) and is_schedule(value):
        usual = plain(as_mapping(ScheduleConfig(type=value["type"], start=value["start"], end=value["end"])))
        kept = ("type", "start", "end")
        return {key: entry for key, entry in value.items() if key in kept or entry != usual.get(key)}
    if isinstance(value, Mapping):
        return {key: _plainly(entry) for key, entry in value.items()}
    return [_plainly(entry) for entry in value] if isinstance(value, list) else value
