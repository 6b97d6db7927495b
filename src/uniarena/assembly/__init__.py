"""From a resolved configuration to the parts of a run: environment, agent, callbacks, trainer.

Fields that several parts share (γ, rollout length, train batch, intervals) are handed over here by declared name.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from uniarena.agent import Agent
from uniarena.assembly.absent import FQE_LOW, best_figure, concluded, refuse, unheld
from uniarena.assembly.environment import build_env, cannot_be_made, from_reset, refuse_undrawn
from uniarena.assembly.reference import reference_of
from uniarena.assembly.stages import check_stages
from uniarena.assembly.starting import init_from
from uniarena.batch import tree_leaves
from uniarena.buffers.dataset import doubts
from uniarena.config import ConfigError, Experiment, Section, check_components, component, parse
from uniarena.config.assembly import REGULARIZERS, of_data, regularizers
from uniarena.config.errors import Faults
from uniarena.config.section import join
from uniarena.envs.protocol import Env
from uniarena.envs.spaces import describe
from uniarena.nets.encoders import large_inputs
from uniarena.nets.tower import NetworkConfig
from uniarena.optim import ScheduleConfig
from uniarena.policies.policy import PolicyConfig
from uniarena.registry import RegistryError, lookup
from uniarena.trainer.callbacks.checkpoint import Checkpoint, CheckpointConfig
from uniarena.trainer.callbacks.evaluate import Evaluate
from uniarena.trainer.callbacks.evaluate_on_data import EvaluateOnData
from uniarena.trainer.callbacks.log import Log
from uniarena.trainer.callbacks.monitor import Monitor, MonitorConfig
from uniarena.trainer.callbacks.progress import Progress
from uniarena.trainer.callbacks.video import Video
from uniarena.trainer.clock import spelled
from uniarena.trainer.schedule import OnPolicySchedule, readable, schedule_for
from uniarena.trainer.trainer import Trainer
from uniarena.values.model import build_model
from uniarena.values.value import parse_value

FROM_TRAINING = (Evaluate, EvaluateOnData, Monitor, Log, Progress, Checkpoint)
"""Callbacks of every run; what the config does not say of them follows from the section `training`."""
TINY_PARAMETERS = 1_000_000
"""Below this many parameters a second thread costs more than it gives."""


def check(exp: Experiment) -> None:
    """Hold every section against the component that it names, before anything is built or written.

    Raises:
        ConfigError: everything wrong with them, with file and line; of a run in stages, with any of them.
    """
    if exp.stages:
        return check_stages(exp, check)
    faults = Faults()
    with faults.gather():
        check_components(exp)
    with exp.locating():
        learner = component("learner", exp.learner, "learner")[1] if not faults.found else None
        terms = [component("regularizer", term, REGULARIZERS)[1] for term in regularizers(exp) if learner]
        named = [("learner", learner), *((join(REGULARIZERS, k), term) for k, term in enumerate(terms))]
        for path, schedule in (pair for where, cfg in named for pair in _schedules(cfg, where)):
            try:
                lookup("schedule", schedule.type)
            except RegistryError as error:
                faults.add(str(error.args[0]), f"{path}.type", None, error.hint)
        with faults.gather():
            if getattr(_learner_class(exp), "build_model", None) is build_model:
                _check_networks(exp)
        faults.check()


def _learner_class(exp: Experiment) -> Any:
    """The learner or preset that is named; None where there is none, which `check_components` tells."""
    name = exp.learner["type"]
    try:
        return lookup("learner", name) if isinstance(name, str) else name
    except RegistryError:
        return None


def _check_networks(exp: Experiment) -> None:
    """Policy and value of the actor-critic kind; other families check their sections when they are built."""
    if NetworkConfig(network=exp.agent.policy.get("network", "mlp")).built_in:
        parse(PolicyConfig, exp.agent.policy, "agent.policy")
    parse_value(exp.agent.value, exp.agent.policy)


def _schedules(cfg: Any, path: str) -> Iterator[tuple[str, ScheduleConfig]]:
    """The schedules in a config and in those inside it, with their config paths."""
    for field in dataclasses.fields(cfg) if dataclasses.is_dataclass(cfg) else ():
        value, here = getattr(cfg, field.name), f"{path}.{field.name}"
        if isinstance(value, ScheduleConfig):
            yield here, value
        else:
            yield from _schedules(value, here)


def build_agent(exp: Experiment, env: Env) -> Agent:
    """The agent of the run; `agent.init_from` starts it as an earlier one."""
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
                ("buffer", section.buffer if exp.data is None else of_data(exp.data, exp.learner["type"])),
                ("memory", section.memory),
                ("intrinsic", section.intrinsic),
            )
            if part
        },
        seed=exp.experiment.seed,
        device=choose_device(exp.training.device),
    )
    if section.init_from:
        init_from(agent, section.init_from)
    return agent


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


def choose_threads(wanted: int | str, agent: Agent, taken: int = 0) -> int:
    """Torch threads: one for tiny networks, else the cores this process may use, or what OMP_NUM_THREADS says.

    Args:
        taken: cores that other processes of the run keep busy.
    """
    if wanted != "auto":
        return int(wanted)
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return max(1, int(os.environ["OMP_NUM_THREADS"]))
    parameters = sum(p.numel() for p in agent.model.parameters())
    convolutional = any(isinstance(m, torch.nn.Conv2d) for m in agent.model.modules())
    if parameters < TINY_PARAMETERS and not convolutional:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, cores - taken)


def intervals(exp: Experiment, agent: Agent, env: Env) -> tuple[dict[str, int], list[str]]:
    """Environment steps (offline: updates) between logs, saves, evaluations and looks at health, and notices about
    those that never come due.

    `log_interval` and kin count optimisation epochs: with E epochs an update, k means every ⌈k / E⌉ updates.
    """
    training, total, notices, result = exp.training, exp.total, [], {}
    late: list[str] = []
    schedule = schedule_for(agent.learner.cfg, buffer=agent.buffer)
    per_update, epochs = schedule.steps_per_update(env.num_envs), schedule.epochs_per_update
    default = {
        "log": max(per_update, getattr(schedule, "iteration", 1)),
        "save": max(per_update, total // 5),
    }
    default["eval"] = max(per_update, total // 10)
    for name in ("log", "save", "eval"):
        steps = getattr(training, f"{name}_every_env_steps")
        count = getattr(training, f"{name}_interval")
        given = f"{name}_every_env_steps={steps:,} is longer than the run" if steps is not None else ""
        if steps is None:
            steps = default[name] if count is None else -(-count // epochs) * per_update
            if count is not None:
                every = f"every {steps:,} {exp.units}"
                given = f"{name}_interval={count} optimisation epochs is {every}, longer than the run"
        if given and steps > total and exp.data is not None:
            late.append(f"{name}_interval={count:,}")
        elif given and steps > total:
            notices.append(f"training.{given} ({total:,}); it will not come due before the end")
        result[name] = steps
    if late:
        length = spelled(total, exp.units)
        notices.append(
            f"longer than the run of {length}, so that its end alone counts: training.{', '.join(late)}"
        )
    quick = isinstance(schedule, OnPolicySchedule)  # a look costs as much as hundreds of such steps
    result["monitor"] = max(result["log"], MonitorConfig().every_env_steps * (2 if quick else 1))
    starts = getattr(schedule, "learning_starts", 0)
    if starts and getattr(exp.agent.init_from, "take", "") == "all":
        notices.append(
            f"learner.learning_starts={starts:,}: as many env steps are random actions, though the agent starts as an "
            "earlier one; learner.learning_starts=0 lets it act from the first"
        )
    if starts >= total:
        notices.append(
            f"learner.learning_starts={starts:,} is as long as the run ({total:,}): nothing will be learned"
        )
    return result, notices


def build_callbacks(
    exp: Experiment, every: Mapping[str, int], quiet: bool, extra: Sequence[Any] = ()
) -> list[Any]:
    """Evaluation, monitor, the user's own, logging, progress, and last the checkpoint, which saves all their state.

    What the config says of one of the built-in ones is added to what follows from the section `training`.
    """
    training, absent = exp.training, exp.environment.id is None
    best, mode = best_figure(exp) if absent else (CheckpointConfig().best, CheckpointConfig().mode)
    built_in: dict[type, dict[str, Any]] = {
        Evaluate: {
            "every_env_steps": every["eval"],
            "n_episodes": training.n_eval_episodes,
            "reference": reference_of(exp),
        },
        Monitor: {"every_env_steps": every["monitor"]},
        Log: {"every_env_steps": every["log"], "loggers": exp.experiment.loggers},
        Progress: {"quiet": quiet},
        Checkpoint: {
            "every_env_steps": every["save"],
            "keep_last": training.keep_checkpoints,
            "best": best,
            "mode": mode,
        },
    }
    if absent:
        del built_in[Evaluate]
        if best == FQE_LOW:
            built_in[EvaluateOnData] = {"every_env_steps": every["eval"]}
    given = [_build_callback(section, i, built_in) for i, section in enumerate(exp.callbacks)] + list(extra)
    slots = {kind: [callback for callback in given if type(callback) is kind] for kind in built_in}
    for kind, fields in built_in.items():
        slots[kind] = slots[kind] or [kind(**fields)]
    if absent and any(type(callback) in (Evaluate, Video) for callback in given):
        raise refuse("playing episodes")
    own = [callback for callback in given if type(callback) not in built_in]
    evaluations = slots.get(Evaluate, []) + slots.get(EvaluateOnData, [])
    return [*evaluations, *slots[Monitor], *own, *slots[Log], *slots[Progress], *slots[Checkpoint]]


def _build_callback(section: Section, index: int, built_in: Mapping[type, dict[str, Any]]) -> Any:
    path = f"callbacks.{index}"
    kind, cfg = component("callback", section, path)
    if kind in built_in:
        fields = {key: value for key, value in built_in[kind].items() if key not in section}
        return kind(cfg, **fields)
    if cfg is not None:
        return kind(cfg)
    try:
        return kind()
    except TypeError as error:
        raise ConfigError(
            f"this callback cannot be made without arguments: {error}",
            f"{path}.type",
            hint="give its class a Config for what a config can set, or defaults to its arguments",
        ) from error


def build_trainer(
    exp: Experiment,
    run_dir: Path | None,
    meta: dict[str, Any],
    *,
    quiet: bool = False,
    callbacks: Sequence[Any] = (),
) -> tuple[Trainer, list[str]]:
    """Everything assembled, and notices for the user. `check` comes first."""
    with exp.locating():
        refuse_undrawn(exp)
        env = build_env(exp, training=True)
        try:
            agent = build_agent(exp, env)
            taken = 1 if exp.sampling.type == "pipelined" else 0
            torch.set_num_threads(choose_threads(exp.training.threads, agent, taken))
            every, notices = intervals(exp, agent, env)
            trainer = Trainer(
                agent,
                env,
                callbacks=build_callbacks(exp, every, quiet, callbacks),
                run_dir=run_dir,
                meta=meta,
                env_factory=lambda num_envs, seed=None, wrappers=(): build_env(
                    exp, num_envs, extra=wrappers, run_dir=run_dir
                ),
                guard=exp.training.guard,
                sampling=exp.sampling,
            )
        except BaseException as error:
            env.close()
            if isinstance(error, (ValueError, TypeError)) and from_reset(error):
                raise cannot_be_made(exp.environment.id, error) from error
            raise
    spaces = concluded(exp) if exp.environment.id is None else []
    told = [*doubts(agent.buffer), *unheld(agent.learner.cfg, agent.buffer), *_scale_notices(trainer)]
    return trainer, [*notices, *spaces, *told]


def _scale_notices(trainer: Trainer) -> list[str]:
    """A word where the first observations are too large for a network to take as they are."""
    if trainer.agent.normalizer is not None:
        return []
    found = large_inputs(trainer.sampler.env.observation_space, trainer.sampler.last_obs)
    parts = [f"{name or 'observations'} (up to {largest:.3g})" for name, largest in found.items()]
    if not parts:
        return []
    return [
        f"large inputs: {', '.join(parts)}. Networks learn badly from such numbers; "
        "add normalize_observation to environment.wrappers, or scale them in the environment"
    ]


def summary(trainer: Trainer) -> str:
    """Environment, networks, memory, threads, frequencies and the kind of checkpoints, as shown when a run starts."""
    agent, env, columns = trainer.agent, trainer.sampler.env, trainer.sampler.columns
    cfg = agent.learner.cfg
    parts = [f"{name} {_count(part):,}" for name, part in agent.model.named_children() if _count(part)]
    count, threads = _count(agent.model), torch.get_num_threads()
    row_bytes = sum(leaf[0].nbytes for leaf in tree_leaves(trainer.sampler.last_obs))
    kept = "with the environment's own state"
    if trainer.counters.unit == "updates":
        kept = "of the agent; the data stays where it is"
    elif not trainer.sampler.native_state:
        kept = "the environment cannot give its state, so those due by env steps end all its episodes"
    update = trainer.schedule.describe(columns, getattr(cfg, "batch_size", None), row_bytes)
    told = getattr(agent.buffer, "describe", None)
    data = "" if told is None else f"data: {told()}\n"
    if (terms := agent.learner.minimize.regularizers) is not None:
        data += f"regularizers: {terms.describe()}\n"
    sampling = ""
    if trainer.sampler.ahead:
        processes = len(getattr(trainer.sampler, "pids", ()))
        where = f"in {processes} processes" if processes > 1 else "in a process of its own"
        sampling = f"sampling: {where}, while this one learns from the chunk before\n"
    return (
        f"environment: {env.env_id} x {env.num_envs}, observation {describe(env.observation_space)}, "
        f"action {describe(env.action_map.env_space)}\n"
        f"agent: {agent.spec['learner']['type']}, {count:,} parameters ({', '.join(parts)}; "
        f"{readable(count * 4)}) on {agent.device}, {threads} torch thread{'' if threads == 1 else 's'}\n"
        f"{sampling}{data}update: {update}\n"
        f"checkpoints: {kept}"
    )


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
