"""Runs on disk: evaluate, record and export what was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from uniarena import assembly, checkpoint
from uniarena.agent import Agent
from uniarena.assembly.reference import known_reference
from uniarena.checkpoint import CheckpointError
from uniarena.config import ConfigError, Experiment, Section, from_text, load
from uniarena.config.section import REDACTED, find
from uniarena.envs.fit import differs_from
from uniarena.envs.spaces import describe
from uniarena.run.folder import owner, seeds_in
from uniarena.sampling.evaluation import EvalResult, evaluate_agent

VIDEOS = 3
"""Episodes that `record` keeps, unless it is told otherwise."""
UNUSED_SEEDS = 1_000_000
"""Distance of the evaluation's seed from the training's."""


def evaluate(
    run: str | Path,
    episodes: int = 100,
    *,
    deterministic: bool = True,
    seed: int | None = None,
    trust: bool = False,
    secrets: Sequence[str] = (),
    env: str | None = None,
) -> EvalResult:
    """Evaluate the agent of a run (its best checkpoint) or of a checkpoint folder in its own environment.

    Args:
        env: the id of another one; needed where the run learned from data and names none.
        seed: of the evaluation environments; None: one that training never uses.
        trust: allow the checkpoint to import the `module:Class` that it names.
        secrets: `key.path=value` for what the environment needs and was left out of the saved config as a secret.

    Raises:
        CheckpointError: nothing whole is there, it needs `trust`, or it is an agent without a run.
        ConfigError: `env` has other spaces than the agent.
    """
    agent, exp = load_with_config(run, trust, secrets)
    if env is not None:
        exp = replace(exp, environment=replace(exp.environment, id=env))
    played = assembly.build_env(exp, min(episodes, 16), run_dir=owner(locate(run)))
    try:
        if env is not None:
            _refuse_other(agent, played, env)
        start = exp.experiment.seed + UNUSED_SEEDS if seed is None else seed
        found = evaluate_agent(agent, played, episodes, deterministic=deterministic, seed=start)
        return replace(found, reference=known_reference(exp))
    finally:
        played.close()


def _refuse_other(agent: Agent, played: Any, env: str) -> None:
    """Refuse an environment that the agent cannot play in.

    Raises:
        ConfigError: with the spaces of both.
    """
    if differs_from(agent, played)[0]:
        own, other = (
            f"observations {describe(observed)} and actions {describe(acted)}"
            for observed, acted in (
                (agent.observation_space, agent.action_map.env_space),
                (played.observation_space, played.action_space),
            )
        )
        raise ConfigError(
            f"--env {env} has {other}; the agent was made for {own}",
            hint="name an environment of the same spaces, as they are behind the run's wrappers",
        )


def record(
    run: str | Path,
    episodes: int = VIDEOS,
    *,
    deterministic: bool = True,
    seed: int | None = None,
    trust: bool = False,
    secrets: Sequence[str] = (),
) -> list[Path]:
    """Record episodes into `<run>/videos`, as mp4 where an encoder is installed, else as GIF → the files.

    Arguments and errors as in `evaluate`; a ConfigError where the environment gives no pictures.
    """
    agent, exp = load_with_config(run, trust, secrets)
    section = Section({"type": "record_video", "max_videos": episodes})
    env: Any = assembly.build_env(exp, 1, extra=[section], run_dir=owner(locate(run)))
    try:
        start = exp.experiment.seed + UNUSED_SEEDS if seed is None else seed
        evaluate_agent(agent, env, episodes, deterministic=deterministic, seed=start)
        return list(env.files)
    finally:
        env.close()


def export(run: str | Path, target: str | Path | None = None, *, trust: bool = False) -> Path:
    """Write the acting policy as ONNX; by default `policy.onnx` in the run's folder.

    Raises:
        ExportError: packages are missing, the policy has memory, or the file acts differently.
    """
    source = locate(run)
    alone = owner(source) == source.parent
    default = source.with_name(f"{source.name}.onnx") if alone else owner(source) / "policy.onnx"
    return Agent.load(source, device="cpu", trust=trust).export(target or default)


def locate(run: str | Path) -> Path:
    """The checkpoint that a path means: itself, or of a run's folder the best one, else the newest whole one; of a run
    in stages that of the last stage.

    Raises:
        CheckpointError: nothing whole is there.
    """
    path = Path(run)
    if runs := seeds_in(path):
        raise CheckpointError(
            path, f"holds the runs of {len(runs)} seeds; name one of them, such as {runs[0].parent}"
        )
    return checkpoint.locate(path)


def load_with_config(run: str | Path, trust: bool, secrets: Sequence[str]) -> tuple[Agent, Experiment]:
    """The agent of a checkpoint, and the configuration that was saved with it, as far as evaluation needs it."""
    source = locate(run)
    text = checkpoint.read_meta(source).get("config")
    if text is None:
        raise CheckpointError(
            source,
            "holds an agent alone, without a run's configuration; use uniarena.Agent.load(path).act(obs).",
        )
    if not isinstance(text, str):
        raise CheckpointError(
            source, f"is malformed: its configuration is a {type(text).__name__}, not text."
        )
    tree = from_text(text, f"{source / 'manifest.json'} (config)").without("callbacks", "agent")
    if not trust and (names := imported(tree)):
        reason = f"would import {names[0]!r}. If you know where it comes from, load it with trust=True."
        raise CheckpointError(source, reason)
    overrides = only_secrets(tree, secrets)
    tree.put("experiment", Section(tree.get("experiment", {})).without("loggers"), tree.where("experiment"))
    exp = load([tree], overrides)
    # a recorder of the training's would write where the checkpoint says
    wrappers = tuple(each for each in exp.environment.wrappers if each["type"] != "record_video")
    exp = replace(exp, environment=replace(exp.environment, wrappers=wrappers))
    return Agent.load(source, trust=trust), exp


def only_secrets(tree: Section, secrets: Sequence[str]) -> list[str]:
    """The overrides that give again what a saved config left out.

    Raises:
        ConfigError: another key is given.
    """
    for text in secrets:
        key = text.partition("=")[0].strip()
        if find(tree, key)[0] != REDACTED:
            raise ConfigError(
                "only secrets that the saved config leaves out can be given here",
                key,
                find(tree, key)[1],
                "leave it out; a new run with other settings can start from this one by agent.init_from",
            )
    return list(secrets)


def imported(tree: Mapping[str, Any]) -> list[str]:
    """What a saved config imports by path to make its environment and to be read at all."""
    found: list[str] = []
    waiting: list[Any] = [tree.get("learner"), tree.get("environment")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and ":" in value:
            found.append(value)
        elif isinstance(value, Mapping):
            waiting += [
                entry for key, entry in value.items() if key != "kwargs"
            ]  # these go to the environment
        elif isinstance(value, list | tuple):
            waiting += value
    return found
