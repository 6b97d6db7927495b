"""From a resolved configuration to the parts of a run: environment, agent, callbacks, trainer.

Fields that several parts share (γ, rollout length, train batch, intervals) are handed over here by declared name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from uniarena.agent import Agent
from uniarena.batch import tree_leaves
from uniarena.config import ConfigError, Experiment, Section, check_components, component
from uniarena.envs import make_env
from uniarena.envs.protocol import Env
from uniarena.envs.spaces import describe
from uniarena.trainer.callbacks.checkpoint import Checkpoint, CheckpointConfig
from uniarena.trainer.callbacks.evaluate import Evaluate, EvaluateConfig
from uniarena.trainer.callbacks.log import Log, LogConfig
from uniarena.trainer.callbacks.progress import Progress, ProgressConfig
from uniarena.trainer.trainer import Trainer

TINY_PARAMETERS = 1_000_000
"""Below this many parameters a second thread costs more than it gives."""


def build_env(
    exp: Experiment, num_envs: int | None = None, *, training: bool = False, extra: Sequence[Section] = ()
) -> Env:
    """The environment of the run with its wrappers.

    Args:
        num_envs: overrides the number of instances.
        training: leave `record_video` out, which is for evaluation episodes.
        extra: wrapper sections around the config's.
    """
    section = exp.environment
    given = [*section.wrappers, *extra]
    records = [wrapper for wrapper in given if wrapper["type"] == "record_video"]
    wrappers = [wrapper for wrapper in given if not (training and wrapper in records)]
    kwargs = dict(section.kwargs)
    if records and not training:
        kwargs.setdefault("render_mode", "rgb_array")
    return make_env(
        section.id,
        num_envs or section.num_envs,
        wrappers=wrappers,
        vectorization=section.vectorization,
        kwargs=kwargs,
        max_episode_steps=section.max_episode_steps,
        action_mask=section.action_mask,
    )


def build_agent(exp: Experiment, env: Env) -> Agent:
    """The agent of the run; `agent.init_from` starts it from the parameters of an earlier one."""
    section = exp.agent
    agent = Agent.assemble(
        env,
        learner=exp.learner,
        policy=section.policy,
        value=section.value,
        parts={
            name: part
            for name, part in (
                ("explorer", section.explorer),
                ("buffer", section.buffer),
                ("intrinsic", section.intrinsic),
            )
            if part
        },
        seed=exp.experiment.seed,
        device=choose_device(exp.training.device),
    )
    if section.init_from:
        _init_from(agent, section.init_from)
    return agent


def _init_from(agent: Agent, path: str) -> None:
    """Networks and statistics of an earlier agent; optimisers, counters and buffers start fresh."""
    source = Agent.load(path, trust=True)
    try:
        agent.model.load_state_dict(source.model.state_dict())
    except RuntimeError as error:
        raise ConfigError(
            f"agent.init_from={path!r} does not fit this agent: {str(error).splitlines()[-1].strip()}",
            path="agent.init_from",
            hint="give the same observation and action spaces and the same agent.policy and agent.value as that run.",
        ) from None


def choose_device(wanted: str) -> str:
    """`auto`: the first accelerator that is there, else the CPU.

    Raises:
        ConfigError: a device that this machine lacks.
    """
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=wanted)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"training.device={wanted!r} cannot be used here: {str(error).splitlines()[0]}",
            path="training.device",
            hint="use training.device=auto or cpu.",
        ) from None
    return wanted


def choose_threads(wanted: int | str, agent: Agent) -> int:
    """Torch threads: one for tiny networks, else the cores this process may use."""
    if wanted != "auto":
        return int(wanted)
    parameters = sum(p.numel() for p in agent.model.parameters())
    convolutional = any(isinstance(m, torch.nn.Conv2d) for m in agent.model.modules())
    if parameters < TINY_PARAMETERS and not convolutional:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def steps_per_update(agent: Agent, env: Env) -> int:
    """Environment steps gathered for one learner update."""
    cfg = agent.learner.cfg
    rollout = cfg.n_steps * env.num_envs
    batch = cfg.train_batch_size or rollout
    return -(-batch // rollout) * rollout


def intervals(exp: Experiment, agent: Agent, env: Env) -> tuple[dict[str, int], list[str]]:
    """Environment steps between logs, saves and evaluations, and notices about those that never come due.

    `log_interval` and kin count optimisation epochs: with E epochs an update, k means every ⌈k / E⌉ updates.
    """
    training, notices, result = exp.training, [], {}
    per_update, epochs = steps_per_update(agent, env), agent.learner.cfg.n_epochs
    default = {"log": per_update, "save": max(per_update, training.total_timesteps // 5)}
    default["eval"] = max(per_update, training.total_timesteps // 10)
    for name in ("log", "save", "eval"):
        steps = getattr(training, f"{name}_every_env_steps")
        count = getattr(training, f"{name}_interval")
        if steps is None:
            steps = default[name] if count is None else -(-count // epochs) * per_update
            if count is not None and steps > training.total_timesteps:
                notices.append(
                    f"training.{name}_interval={count} optimisation epochs is every {steps:,} env steps, longer than the "
                    "run "
                    f"({training.total_timesteps:,}); it will not come due before the end."
                )
        elif steps > training.total_timesteps:
            notices.append(
                f"training.{name}_every_env_steps={steps:,} is longer than the run ({training.total_timesteps:,})."
            )
        result[name] = steps
    return result, notices


def build_callbacks(
    exp: Experiment, every: Mapping[str, int], quiet: bool, extra: Sequence[Any] = ()
) -> list[Any]:
    """Evaluation, the user's own, logging, progress, and last the checkpoint, which saves what they all know."""
    training = exp.training
    evaluate = Evaluate(EvaluateConfig(every_env_steps=every["eval"], n_episodes=training.n_eval_episodes))
    own = [_build_callback(section, index) for index, section in enumerate(exp.callbacks)] + list(extra)
    kinds = {type(callback) for callback in own}
    defaults: list[tuple[type, Callable[[], Any]]] = [
        (Log, lambda: Log(LogConfig(every_env_steps=every["log"], loggers=exp.experiment.loggers))),
        (Progress, lambda: Progress(ProgressConfig(quiet=quiet))),
        (
            Checkpoint,
            lambda: Checkpoint(
                CheckpointConfig(every_env_steps=every["save"], keep_last=training.keep_checkpoints)
            ),
        ),
    ]
    chosen = [] if Evaluate in kinds else [evaluate]
    return chosen + own + [make() for kind, make in defaults if kind not in kinds]


def _build_callback(section: Mapping[str, Any], index: int) -> Any:
    kind, cfg = component("callback", section, f"callbacks.{index}")
    return kind() if cfg is None else kind(cfg)


def build_trainer(
    exp: Experiment,
    run_dir: Path | None,
    meta: dict[str, Any],
    *,
    quiet: bool = False,
    callbacks: Sequence[Any] = (),
) -> tuple[Trainer, list[str]]:
    """Everything assembled, and notices for the user."""
    check_components(exp)
    with exp.locating():
        env = build_env(exp, training=True)
        try:
            agent = build_agent(exp, env)
            torch.set_num_threads(choose_threads(exp.training.threads, agent))
            every, notices = intervals(exp, agent, env)
            trainer = Trainer(
                agent,
                env,
                callbacks=build_callbacks(exp, every, quiet, callbacks),
                run_dir=run_dir,
                meta=meta,
                env_factory=lambda num_envs, seed=None, wrappers=(): build_env(exp, num_envs, extra=wrappers),
            )
        except BaseException:
            env.close()
            raise
    return trainer, notices


def summary(trainer: Trainer) -> str:
    """Networks, parameters, memory and threads, as shown at the start of a run."""
    agent, env = trainer.agent, trainer.sampler.env
    rows = agent.learner.cfg.n_steps * trainer.sampler.columns
    leaves = [*tree_leaves(trainer.sampler.last_obs)]
    memory = rows * sum(leaf[0].nbytes for leaf in leaves)
    parts = [
        f"{name} {sum(p.numel() for p in part.parameters()):,}" for name, part in agent.model.named_children()
    ]
    count = sum(p.numel() for p in agent.model.parameters())
    return (
        f"{env.env_id}: {env.num_envs} environments, observation {describe(env.observation_space)}, "
        f"action {describe(env.action_map.env_space)}\n"
        f"{agent.spec['learner']['type']}: {count:,} parameters ({', '.join(parts)}), {count * 4 / 2**20:.2f} MiB, "
        f"on {agent.device} with {torch.get_num_threads()} torch thread(s)\n"
        f"rollout: {agent.learner.cfg.n_steps} steps x {trainer.sampler.columns} columns, "
        f"{memory / 2**20:.2f} MiB of observations"
    )
