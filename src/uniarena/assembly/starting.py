"""`agent.init_from`: an agent starts as an earlier one, of another run or of the stage before."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from uniarena import checkpoint
from uniarena.agent import Agent
from uniarena.batch import tree_leaves
from uniarena.checkpoint import CheckpointError
from uniarena.config import ConfigError
from uniarena.config.schema import InitFromConfig
from uniarena.envs.fit import compare_saved
from uniarena.envs.observations import as_batch
from uniarena.optim.targets import Target

log = logging.getLogger("uniarena")
WHERE = "agent.init_from"
SAME = 1e-5
"""Largest difference between the outputs of two policies that do the same."""
PROBES = 64
"""Observations that they are compared on."""
_SETTINGS = ("eps", "weight_decay", "betas", "alpha", "momentum")


def init_from(agent: Agent, given: str | InitFromConfig) -> None:
    """Start as an earlier agent. Buffers, the clock and random streams start fresh.

    Only tensors are read: nothing that the checkpoint names is imported.

    Raises:
        ConfigError: nothing whole is there, or it does not fit this agent.
    """
    cfg = InitFromConfig(path=given) if isinstance(given, str) else given
    try:
        place = checkpoint.locate(cfg.path)
        _refuse_other(place, cfg)
        state, meta = checkpoint.load(place, only=("agent",))
    except CheckpointError as error:
        raise ConfigError(
            f"nothing to start from: {error}", WHERE, hint="give a run's or a checkpoint's folder."
        ) from None
    if cfg.take == "networks":
        _networks(agent, cfg.path, state["agent"])
    else:
        _all(agent, cfg.path, state["agent"], meta)
    _scaler(agent, state["agent"])


def _refuse_other(place: Path, cfg: InitFromConfig) -> None:
    """Refuse a checkpoint that is not the one which was written down."""
    found = checkpoint.fingerprint(place)
    if cfg.sha256 not in (None, found):
        raise ConfigError(
            f"{place} is another agent than the one that was started from: the manifest of that checkpoint had the "
            f"sha256 {cfg.sha256}, and this one has {found}",
            f"{WHERE}.sha256",
            hint="give the path at which that checkpoint lies now; a new run may start from any, without this key",
        )


def _networks(agent: Agent, path: str, saved: Mapping[str, Any]) -> None:
    """Networks and statistics of observations, all of them; optimisers and counts start fresh."""
    model = {
        key.removeprefix("model."): value
        for key, value in saved["learner"].items()
        if key.startswith("model.")
    }
    try:
        agent.model.load_state_dict(model)
    except RuntimeError as error:
        reasons = [line.strip() for line in str(error).splitlines()[1:4]]
        raise ConfigError(
            f"{path} does not fit this agent: " + "\n".join(reason[:200] for reason in reasons),
            WHERE,
            hint="use the spaces, wrappers, agent.policy and agent.value of that run (its config.yaml shows them), "
            "or take what fits: agent.init_from={path: …, take: all}.",
        ) from None
    for module in agent.learner.modules():
        if isinstance(module, Target):
            module.reset()


def _scaler(agent: Agent, saved: Mapping[str, Any]) -> None:
    """Statistics of returns."""
    if agent.reward_scaler is not None and saved["reward_scaler"] is not None:
        own = agent.reward_scaler.state_dict()
        kept = {key: value for key, value in saved["reward_scaler"].items() if key.startswith("moments.")}
        agent.reward_scaler.load_state_dict({**own, **kept})


# -- all that fits -----------------------------------------------------------------------------------------------
def _all(agent: Agent, path: str, saved: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Go on where the learner is the same, else take over what fits by name and shape; say which."""
    before = meta["agent"]
    faults, _ = compare_saved(before, agent.spec)
    if faults:
        raise ConfigError(
            f"{path} is an agent of another environment: " + "; ".join(faults),
            WHERE,
            hint="give both the same spaces, wrappers included.",
        )
    name = before["learner"]["type"]
    if _continues(agent, saved["learner"], before):
        _go_on(agent, saved)
        updates = meta.get("counters", {}).get("updates", 0)
        log.info(
            "the agent goes on from %s (%s, %s updates): networks, targets, statistics, optimisers and counts",
            path, name, f"{updates:,}",
        )  # fmt: skip
    else:
        log.info("the agent starts from %s (%s): %s", path, name, _take_over(agent, saved["learner"]))
        _compare(agent, saved["learner"], before)
    _parts(agent, saved, before)


def _continues(agent: Agent, saved: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether all of the learner's state fits: the same learner and optimisers, networks of the same shapes."""
    own, extra = agent.learner.state_dict(), saved["_extra_state"]

    def shapes(state: Mapping[str, Any]) -> dict[str, Any]:
        return {name: tuple(v.shape) if isinstance(v, Tensor) else None for name, v in state.items()}

    def kind(section: Mapping[str, Any]) -> tuple[Any, ...]:
        optimizer = section.get("optimizer") or {}
        optimizer = {"type": optimizer} if isinstance(optimizer, str) else optimizer
        return section["type"], optimizer.get("type", "adam"), optimizer.get("base")

    same = kind(before["learner"]) == kind(agent.spec["learner"]) and shapes(own) == shapes(saved)
    return same and set(extra["optimizers"]) == set(agent.learner.optimizers)


def _go_on(agent: Agent, saved: Mapping[str, Any]) -> None:
    """The learner's whole state, but for what the configuration says anew: regularisers, settings of optimisers,
    learning rates that follow what is measured, and factors that callbacks put on them.
    """
    learner = agent.learner
    fresh = {
        name: ([{k: g[k] for k in _SETTINGS if k in g} for g in optimizer.groups], optimizer.memory)
        for name, optimizer in learner.optimizers.items()
    }
    extra = {
        name: value for name, value in saved["learner"]["_extra_state"].items() if name != "regularizers"
    }
    learner.load_state_dict({**saved["learner"], "_extra_state": extra})
    for name, (groups, memory) in fresh.items():
        optimizer = learner.optimizers[name]
        for group, own in zip(optimizer.groups, groups, strict=True):
            group.update(own)
        optimizer.memory = {**optimizer.memory, "factor": memory["factor"], "measured": memory["measured"]}
    learner.set_progress(0.0)


@torch.no_grad()
def _take_over(agent: Agent, saved: Mapping[str, Any]) -> str:
    """Copy what fits by name and shape → what was taken over and what begins anew."""
    own = {name: value for name, value in agent.learner.state_dict().items() if isinstance(value, Tensor)}
    taken, means = set(), set()
    for name, value in own.items():
        given = saved.get(name)
        if not isinstance(given, Tensor):
            continue
        if given.shape == value.shape:
            value.copy_(given)
            taken.add(name)
        elif name.startswith("model.policy.network.") and (rows := _means(value, given)):
            value[:rows].copy_(given[:rows])
            means.add(name)
    for name, module in agent.learner.named_modules():
        inside = {key for key in own if key.startswith(f"{name}.")}
        if isinstance(module, Target) and not inside <= taken:
            module.reset()
            taken -= inside
            own = {key: value for key, value in own.items() if key not in inside}
    anew = set(own) - taken - means
    parts = [
        f"{_named(taken)} {'is' if len(_groups(taken)) == 1 else 'are'} taken over"
        if taken
        else "nothing fits"
    ]
    if means:
        parts.append(f"of {_named(means, 9)} the rows of the means")
    if anew:
        whole = set(_groups(anew)) - set(_groups(taken | means))
        rest = {
            name for name in anew if not set(_groups([name])) <= whole
        }  # of parts that are taken over but for them
        named = [*sorted(whole), *sorted(rest)]
        parts.append(f"{', '.join(named)} begin{'s' if len(named) == 1 else ''} anew")
    return "; ".join(parts)


def _means(value: Tensor, given: Tensor) -> int:
    """Rows that two last layers share where one gives means alone and the other means and log-stds; else 0."""
    rows = sorted((len(value), len(given))) if value.dim() and value.dim() == given.dim() else [1, 1]
    return rows[0] if 2 * rows[0] == rows[1] and value.shape[1:] == given.shape[1:] else 0


def _groups(names: Iterable[str], depth: int = 2) -> list[str]:
    """`model.policy`, `model.q`, `target`: the parts that tensors belong to."""
    return sorted({".".join(name.split(".")[: depth if name.startswith("model.") else 1]) for name in names})


def _named(names: Iterable[str], depth: int = 2) -> str:
    return ", ".join(_groups(names, depth))


def _parts(agent: Agent, saved: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Explorer and bonuses, each where it is of the same kind."""

    def kinds(spec: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        return spec["explorer"]["type"], [bonus["type"] for bonus in spec["intrinsic"]]

    (explorer, bonuses), (own, ours) = kinds(before), kinds(agent.spec)
    try:
        if explorer == own:
            agent.explorer.load_state_dict(saved["explorer"])
        if bonuses and bonuses == ours:
            for bonus, state in zip(agent.bonuses, saved["bonuses"], strict=True):
                bonus.load_state_dict(state)
    except (RuntimeError, LookupError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"explorer and bonuses are of the same kind as before, and do not fit: {reason}",
            WHERE,
            hint="give them the settings of before.",
        ) from error


def _compare(agent: Agent, saved: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Say where the policy does not do what the earlier one did: shapes alone do not tell how numbers are read."""
    try:
        checkpoint.check_trust(dict(before), Path(), trust=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            earlier = Agent({**before, "device": str(agent.device)})
        earlier.learner.load_state_dict(saved)
    except (CheckpointError, ConfigError, ValueError, LookupError, RuntimeError):
        return  # made of classes that are not to be imported, or that are not there
    space = agent.observation_space
    space.seed(0)
    rows = [space.sample() for _ in range(PROBES)]
    far = sum(_acts_otherwise(earlier, agent, row) for row in rows)
    if far:
        log.warning(
            "the policy does not act as the earlier one: on %d of %d random observations its likeliest action is "
            "another. Give both the same agent.policy, activation included; where actions are a Box also the same "
            "distribution, since bc, iql and awac bound the mean and ppo does not: gaussian, or squashed_gaussian",
            far, PROBES,
        )  # fmt: skip


def _acts_otherwise(earlier: Agent, agent: Agent, row: Any) -> bool:
    """Whether two agents' likeliest actions differ at an observation."""
    found = []
    for each in (earlier, agent):
        obs, _ = as_batch(each.observation_space, row, each.device)
        first = torch.ones(1, dtype=torch.bool, device=each.device)
        with torch.inference_mode():
            action, _ = each.actor.mode(obs, each.actor.initial_state(1), first)
        found.append([leaf.float() for leaf in tree_leaves(action)])
    return any(
        float((a - b).abs().max()) > SAME * (1 + float(a.abs().max())) for a, b in zip(*found, strict=True)
    )
