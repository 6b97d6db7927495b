"""`load`: sources and overrides become one checked `Experiment`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uniarena import registry
from uniarena.config import answers
from uniarena.config.assembly import check_components, component
from uniarena.config.canonical import canonical
from uniarena.config.environments import is_multi_agent, renamed
from uniarena.config.errors import ConfigError, Faults, listed
from uniarena.config.merging import merge
from uniarena.config.offline import check_clock
from uniarena.config.parse import coerce, parse
from uniarena.config.read import read, read_override
from uniarena.config.schema import SECTIONS, EnvironmentConfig, Experiment
from uniarena.config.section import REDACTED, Items, Section, find, join
from uniarena.config.stages import STAGES, Stages
from uniarena.config.wording import given

Source = str | Path | Mapping[str, Any]


def load(sources: Source | Sequence[Source], overrides: Sequence[str] = ()) -> Experiment:
    """Read a config.

    Args:
        sources: files, recipe names or maps; merged left to right, so that the last one wins.
        overrides: `key.path=value` each, applied last.

    Returns:
        The experiment: canonical names only, defaults filled in, `notices` for the user.

    Raises:
        ConfigError: anything wrong with it, with path, file and line.
    """
    merged, misspelt, stages = _merged(sources, overrides)
    if stages.given:
        return stages.build(merged, misspelt, _build)
    if misspelt.found:  # faults below such a section are told in the same round
        experiment = None
        with misspelt.gather():
            experiment = _build(merged)
        with misspelt.gather():
            if experiment is not None:
                check_components(experiment)
            elif isinstance(merged.get("learner"), Section):
                component("learner", merged["learner"], "learner")
        misspelt.check()
    return _build(merged)


def has_learner(sources: Source | Sequence[Source], overrides: Sequence[str] = ()) -> bool:
    """Whether a config says anything of what learns; without it, it describes environments alone.

    Raises:
        ConfigError: it cannot be read.
    """
    merged, _, stages = _merged(sources, overrides)
    return stages.given or any(name in merged for name in ("learner", "agent", "data"))


def _merged(sources: Source | Sequence[Source], overrides: Sequence[str]) -> tuple[Section, Faults, Stages]:
    """All sources and overrides as one canonical tree, what is misspelt in it, and the stages beside it."""
    several = [sources] if isinstance(sources, str | Path | Mapping) else list(sources)
    if not several:
        raise ConfigError("no config given", hint="name a file or a recipe, such as ppo/cartpole")
    merged, misspelt, stages = Section(), Faults(), Stages()
    for index, tree in enumerate((*map(read, several), *map(read_override, overrides))):
        answers.refuse_hydra(tree, "", None)
        own = canonical(tree.without(STAGES), merged, misspelt)
        merged = merge(merged, own)
        stages.take(tree, merged, override=index >= len(several))
        if index >= len(several):
            stages.refuse_hidden(own)
    return merged, misspelt, stages


def _build(tree: Section) -> Experiment:
    """Check a merged canonical tree and fill in the defaults."""
    faults = Faults()
    notices: list[str] = []
    _refuse_redacted(tree, "", faults)
    if find(tree, "learner.type")[0] is None:
        hint = "add `learner: {type: ppo}`"
        faults.add("no algorithm is named", "learner.type", tree.where("learner"), hint)
    if find(tree, "environment.id")[0] is None and tree.get("data") is None:
        hint = "add `environment: {id: CartPole-v1}`"
        faults.add("no environment is named", "environment.id", tree.where("environment"), hint)
        faults.check()
    _check_named(tree, faults)
    sections: dict[str, Any] = {}
    for name, kind in SECTIONS.items():
        value = tree.get(name)
        if name == "agent":
            value = _agent(value)
        with faults.gather():
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                sections[name] = parse(kind, Section() if value is None else value, name)
            elif value is not None:
                sections[name] = coerce(kind, value, name, tree.where(name))
    with faults.gather():
        if "environment" in sections:
            sections["environment"] = _environment(sections["environment"], tree, notices)
    notices += check_clock(tree, faults)
    faults.check()
    notices += _notices(tree, sections)
    return Experiment(**sections, notices=tuple(notices), source=tree)


def _check_named(tree: Section, faults: Faults) -> None:
    """Bonuses that are described must also be named; explorer and buffer may be the ones that the learner brings."""
    part, where = find(tree, "agent.intrinsic")
    for section in part if isinstance(part, list) else [part]:
        if isinstance(section, Section) and "type" not in section:
            hint = f"add type: one of {listed(registry.names('bonus'))}"
            faults.add("no bonus is named", "agent.intrinsic.type", section.location or where, hint)


def _agent(value: Section | None) -> Section:
    """Several bonuses are a list, one may be a map; a section set to null is not there."""
    out = Section(value or {})
    bonus = out.get("intrinsic")
    if isinstance(bonus, Section):
        out.put("intrinsic", Items([bonus], [bonus.location]), out.where("intrinsic"))
    elif bonus is None:
        out.pop("intrinsic", None)
    for key in [key for key, entry in out.items() if entry is None]:
        del out[key]
    return out


def _environment(cfg: EnvironmentConfig, tree: Section, notices: list[str]) -> EnvironmentConfig:
    """Check the id and bring an old one up to date (an EnvPool id is EnvPool's own affair)."""
    _, where = find(tree, "environment.id")
    if not isinstance(cfg.id, str):
        if (
            callable(cfg.id) or cfg.id is None
        ):  # None: there is data, which says what there is to see and to do
            return cfg
        raise ConfigError(
            f"expected an environment's id, got {given(cfg.id)}",
            "environment.id",
            where,
            "write one such as CartPole-v1",
        )
    if is_multi_agent(cfg.id):
        raise ConfigError(
            f"{cfg.id} is an environment of several agents; multi-agent training comes with a later version",
            "environment.id", where, "choose an environment of one agent for now",
        )  # fmt: skip
    if cfg.vectorization == "envpool":
        return cfg
    new, notice = renamed(cfg.id, where)
    notices += [notice] if notice else []
    return dataclasses.replace(cfg, id=new)


def _notices(tree: Section, sections: Mapping[str, Any]) -> list[str]:
    """What the user should know: a default that decides the run's length, and keys without effect."""
    found = []
    training, distributed = sections["training"], sections["distributed"]
    if tree.get("data") is None and find(tree, "training.total_timesteps")[0] is None:
        found.append(
            f"training.total_timesteps is not given; the default is {training.total_timesteps:,} env steps"
        )
    if distributed.num_learners > 1:
        raise ConfigError(
            f"{distributed.num_learners} learners were asked for; more than one come with a later version",
            "distributed.num_learners", find(tree, "distributed.num_learners")[1], "leave it out for now",
        )  # fmt: skip
    if distributed.backend != "auto":
        replaced = " (where there is no GPU, gloo takes its place)" if distributed.backend == "nccl" else ""
        found.append(
            f"distributed.backend = {distributed.backend} has no effect yet with one learner{replaced}"
        )
    if distributed.sync_period > 1:
        found.append(
            f"distributed.sync_period = {distributed.sync_period} has no effect yet with one learner"
        )
    return found


def _refuse_redacted(value: Any, path: str, faults: Faults, where: Any = None) -> None:
    if value == REDACTED:
        faults.add(
            "this secret was left out when the config was saved", path, where, f"give it again: {path}=…"
        )
    entries = (
        value.items() if isinstance(value, Section) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, entry in entries:
        _refuse_redacted(
            entry, join(path, key), faults, value.where(key) if isinstance(value, Section) else where
        )
