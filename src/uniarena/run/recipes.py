"""Data and the recipe that it is made from, held against each other and against the run that learns from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gymnasium import Space

from uniarena import assembly
from uniarena.config import ConfigError, Experiment, brought_parts, component
from uniarena.data import DataError
from uniarena.data import load as load_data
from uniarena.data.config import MadeFromConfig
from uniarena.envs.fit import misfit
from uniarena.registry import lookup
from uniarena.seeding import preserved_globals


@dataclass(frozen=True)
class Spaces:
    """What an environment shows and takes, as learners are given it."""

    observation: Space[Any]
    action: Space[Any]

    def misfits(self, other: Spaces) -> list[str]:
        """How another one's differ."""
        pairs = {
            "observations": (self.observation, other.observation),
            "actions": (self.action, other.action),
        }
        found = {what: misfit(*pair) for what, pair in pairs.items()}
        return [f"{what}: {fault}" for what, fault in found.items() if fault]


def alone(exp: Experiment) -> Experiment:
    """The run with one environment, and no processes for it."""
    section = replace(exp.environment, num_envs=1, workers=None)
    if section.vectorization == "async":
        section = replace(section, vectorization="auto")
    return replace(exp, environment=section)


def spaces_of(exp: Experiment) -> Spaces:
    """Make a run's environment to see its spaces.

    Raises:
        ConfigError: it cannot be made.
        DataError: the data that stands for it cannot be read.
    """
    with preserved_globals():
        env = assembly.build_env(alone(exp), training=True)
    try:
        return Spaces(env.observation_space, env.action_map.env_space)
    finally:
        env.close()


def refuse_unfit(recipe: Experiment, cfg: MadeFromConfig, where: str, run: Experiment) -> None:
    """Refuse, before a recipe is trained, what could not be recorded of it, or would not fit the run.

    Args:
        where: the section that names the recipe.
        run: the one that learns from what is made; its spaces are known where it has an environment.

    Raises:
        ConfigError: of `kind: replay` the recipe keeps no experience; or it has other spaces than the run.
    """
    if cfg.kind == "replay" and not _keeps(recipe):
        raise keeps_nothing(cfg, where)
    if run.environment.id is None:
        return
    with recipe.locating():
        theirs = spaces_of(recipe)
    faults = spaces_of(run).misfits(theirs)
    if faults:
        raise ConfigError(
            f"{cfg.recipe} plays {recipe.environment.id}, whose spaces are not those of the run: {'; '.join(faults)}",
            f"{where}.made_from.recipe",
            hint=f"name a recipe that learns in {run.environment.id}, wrappers included",
        )


def keeps_nothing(cfg: MadeFromConfig, where: str) -> ConfigError:
    """The error for a replay that no buffer holds."""
    return ConfigError(
        f"{cfg.recipe} keeps no experience: its buffer holds one rollout",
        f"{where}.made_from.kind",
        hint="name an off-policy recipe, or another kind",
    )


def _keeps(recipe: Experiment) -> bool:
    """Whether the buffer of a recipe can give what it holds."""
    given = dict(recipe.agent.buffer or {})
    brought = brought_parts(lookup("learner", recipe.learner["type"]), recipe.agent.memory).get("buffer", {})
    return hasattr(
        component("buffer", {"type": given.get("type", brought.get("type"))}, "agent.buffer")[0], "recent"
    )


def told_otherwise(path: Path, cfg: MadeFromConfig, trained: int | None) -> list[str]:
    """Where a file that is there says that it was made otherwise than `cfg` does; nothing of a file that says nothing.

    Args:
        trained: env steps of the recipe's training; None: not known.
    """
    try:
        origin = load_data(path, lazy=True).source.origin
    except DataError:  # told by whoever learns from it
        return []
    if origin.get("made_by") != "uniarena":
        return []
    pairs: dict[str, tuple[Any, Any]] = {
        "kind": (origin.get("kind"), cfg.kind),
        "seed": (origin.get("seed"), cfg.seed),
    }
    if not _same_recipe(origin.get("recipe"), cfg.recipe):
        pairs["recipe"] = (origin.get("recipe"), cfg.recipe)
    if trained is not None:
        pairs["env_steps"] = (origin.get("trained_env_steps"), trained)
    if cfg.kind != "replay":
        pairs["episodes"] = (_episodes(origin.get("parts")), cfg.episodes)
    return [
        f"{key} {said}, not {wanted}" for key, (said, wanted) in pairs.items() if said not in (None, wanted)
    ]


def _same_recipe(said: Any, wanted: str) -> bool:
    """Whether two names mean one recipe."""
    return isinstance(said, str) and _plain(said) == _plain(wanted)


def _plain(name: str) -> Path:
    return Path(name.replace("\\", "/").removesuffix(".yaml")).absolute()


def _episodes(parts: Any) -> int | None:
    """Of all parts of a set; None where it does not say."""
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        return None
    counts = [part.get("episodes") for part in parts]
    return sum(counts) if counts and all(isinstance(count, int) for count in counts) else None
