"""Evaluation without an environment: what an agent would earn, from episodes of others, and how far to trust it.

Values are discounted returns of an episode from its start. Fitted-Q evaluation is of the endless task, as the learner
sees it; weighted returns are of as many steps as the longest episode has.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uniarena.batch import Tree, tree_leaves, tree_map
from uniarena.buffers.dataset import DatasetBuffer, DatasetConfig
from uniarena.buffers.spec import BufferSpec
from uniarena.buffers.statistics import fit_to_data
from uniarena.config import ConfigError
from uniarena.config.errors import counted
from uniarena.data import Dataset
from uniarena.explorers.actor import untouched
from uniarena.learners.base import declared
from uniarena.learners.offline.bc import BC, BCConfig
from uniarena.learners.offline.fitted_q import FittedQ, FittedQConfig
from uniarena.nets.encoders import EncoderConfig, image_leaves
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.ops.off_policy_evaluation import (
    effective_size,
    interval,
    resamples,
    side_by_side,
    step_weights,
    weighted_return,
)
from uniarena.optim import Minimize
from uniarena.sampling.estimates import Estimate, OnData
from uniarena.seeding import Streams, preserved_globals
from uniarena.values.q_model import QModel

log = logging.getLogger("uniarena")

METHODS = ("fqe", "wis")
SLOW_S = 10.0
"""Seconds after which an evaluation says how far it is."""
SAMPLES = 2_000
"""Resamples of an interval."""
LEAST_EPISODES = 10.0
"""Effective number of episodes below which weighted returns say nothing."""
MOST_OUTSIDE = 0.2
"""Share of places where the policy may do what the data hardly ever does."""
RARE, SELDOM = 0.05, 0.01
"""What the data hardly ever does: classes with less than this probability; other actions with a density below this
quantile of the data's own."""
CLONING, PART = 2_000, 200
"""Updates of the behaviour's model, and of a part of them after which the best so far is kept."""
NEAR = 0.02
"""Of the size of the returns that can be: by so much a value may be outside of them, since networks are not exact."""
ROWS = 4_096
"""Places that the policy is compared with the data in; rows of one pass of a network."""


def data_for(agent: Any, cfg: DatasetConfig, dataset: Dataset | None = None) -> DatasetBuffer:
    """The data as an agent's learner would have it, in single steps.

    Args:
        dataset: the same, loaded already.

    Raises:
        DataError: it cannot be read, or is not of the agent's spaces.
    """
    spec = BufferSpec(
        agent.observation_space,
        agent.action_map.policy_space,
        gamma=declared(agent.learner.cfg, "gamma"),
        batch_size=256,
        device=agent.device,
        action_space=agent.action_map.env_space,
    )
    return DatasetBuffer(cfg, spec, dataset)


def evaluate_on_data(
    agent: Any,
    buffer: DatasetBuffer,
    methods: Sequence[str] = METHODS,
    *,
    deterministic: bool = True,
    cfg: FittedQConfig | None = None,
    log_prob: np.ndarray | None = None,
    support: bool = True,
    seed: int = 0,
) -> OnData:
    """Estimate what an agent would earn.

    Args:
        agent: without memory.
        buffer: of `data_for`; with one step a row.
        methods: of `METHODS`.
        deterministic: the mode of the policy instead of samples.
        cfg: of fitted-Q evaluation.
        log_prob: `[M]` log-probs of the data's actions under what acted, densities per unit of the policy's space;
            None: of a policy cloned from the data, which is also what the policy's actions are held against.
        support: look whether the policy stays where the data is; for that, too, a policy is cloned.
        seed: of all draws.

    Raises:
        ConfigError: a policy with memory, or an unknown method.
    """
    if odd := set(methods) - set(METHODS):
        raise ConfigError(
            f"unknown: {', '.join(sorted(odd))}; expected of {', '.join(METHODS)}", path="method"
        )
    with preserved_globals(), untouched(agent.actor):
        torch.manual_seed(seed)
        look = _Look(agent, buffer, deterministic, seed)
        outside, found = look.outside() if support else math.nan, dict[str, Estimate]()
        for name in methods:
            found[name] = (
                _fqe(look, cfg or FittedQConfig(), outside) if name == "fqe" else _wis(look, log_prob)
            )
        data = buffer.dataset
        return OnData(
            {"path": str(data.source.path), "episodes": data.episodes, "transitions": len(data)},
            "deterministic" if look.deterministic else "stochastic",
            buffer.spec.gamma,
            look.behaviour(),
            outside,
            found,
        )


class _Look:
    """An agent's policy beside the data, and a clone of what acted in it."""

    def __init__(self, agent: Any, buffer: DatasetBuffer, deterministic: bool, seed: int) -> None:
        self.agent, self.buffer, self.streams, self.seed = agent, buffer, Streams(seed), seed
        self.deterministic = deterministic or isinstance(agent.model, QModel)
        self.generator = torch.Generator(device=agent.device)
        self.generator.manual_seed(self.streams.seed_for("policy"))
        if agent.actor.initial_state(1) is not None:
            raise ConfigError(
                "this policy has memory, and is not to be had on single rows of data",
                path="agent",
                hint="evaluate it in an environment",
            )

    def act(self, obs: Tree) -> Tree:
        """What the policy does."""
        first = torch.ones(len(tree_leaves(obs)[0]), dtype=torch.bool, device=self.agent.device)
        with torch.no_grad():
            return self.agent.actor.pick(obs, None, first, self.deterministic, self.generator)[0]

    def log_prob(self) -> np.ndarray:
        """`[M]` of the data's actions under the policy.

        Raises:
            TypeError: it has no density.
        """
        if not self.deterministic:
            frozen = self.agent.model.policy.frozen()
            return self._over_rows(lambda rows: frozen.log_prob(rows.obs, rows.action))
        if any(
            leaf.is_floating_point() for leaf in tree_leaves(self.buffer.at(np.zeros(1, np.int64)).action)
        ):
            raise TypeError("a deterministic policy of continuous actions gives no log-probs")
        return self._over_rows(lambda rows: _same(self.act(rows.obs), rows.action))

    @cached_property
    def clone(self) -> Any:
        """A policy fitted to the data's actions, as it was when it foretold held-out ones best."""
        agent, cfg = self.agent, BCConfig(learning_rate=1e-3)
        spaces_ = agent.observation_space, agent.action_map.policy_space
        sections: Any = ({"hidden_sizes": [128, 128]}, {})
        model = BC.build_model(*spaces_, *sections, self.normalizer, Streams(self.seed), cfg=cfg)
        model.to(agent.device)
        learner = BC(model, cfg, Minimize(), self.streams.torch("clone"))
        draws, best, kept = self.streams.torch("clone/rows"), math.inf, copy.deepcopy(model.state_dict())
        for _ in range(CLONING // PART):
            updates = [learner.update(self.buffer.sample(draws)).metrics for _ in range(PART)]
            losses = [float(each.get("validation_loss", each["loss"])) for each in updates if "loss" in each]
            if losses and (mean := float(np.mean(losses))) < best:
                best, kept = mean, copy.deepcopy(model.state_dict())
        model.load_state_dict(kept)
        return model.policy.frozen()

    @cached_property
    def normalizer(self) -> ObservationNormalizer:
        """By the moments of the data."""
        images = image_leaves(self.agent.observation_space, EncoderConfig())
        found = ObservationNormalizer(self.agent.observation_space, skip=tuple(images)).to(self.agent.device)
        fit_to_data(self.buffer, found, None)
        return found

    def behaviour_log_prob(self) -> np.ndarray:
        """`[M]` of the data's actions under the clone. Hanna et al. 2019 (arXiv:1806.01347): of the same data it is
        fitted to, which has less variance than the true one.
        """
        return self._over_rows(lambda rows: self.clone.log_prob(rows.obs, rows.action))

    def outside(self) -> float:
        """Share of places spread over the data where the policy does what the clone of the behaviour hardly would."""
        size = self.buffer.size
        rows = self.buffer.at(np.linspace(0, size - 1, min(ROWS, size)).astype(np.int64))
        usual = self.clone.log_prob(rows.obs, rows.action)
        own = self.clone.log_prob(rows.obs, self.act(rows.obs))
        if not any(leaf.is_floating_point() for leaf in tree_leaves(rows.action)):
            return float((own < math.log(RARE)).float().mean())
        return float((own < torch.quantile(usual, SELDOM)).float().mean())

    def behaviour(self) -> tuple[float, tuple[float, float]]:
        """Mean discounted return of the data's episodes, and its interval."""
        data, gamma = self.buffer.dataset, self.buffer.spec.gamma
        steps = np.arange(len(data)) - data.rows.starts[:-1][data.episode_id]
        returns = np.bincount(data.episode_id, data.reward * gamma**steps, minlength=data.episodes)
        drawn = resamples(len(returns), SAMPLES, self.streams.numpy("behaviour")) @ returns / len(returns)
        return float(returns.mean()), interval(drawn)

    def _over_rows(self, of: Callable[[Any], Tensor]) -> np.ndarray:
        parts = [
            of(self.buffer.at(np.arange(start, min(start + ROWS, self.buffer.size)))).double().cpu().numpy()
            for start in range(0, self.buffer.size, ROWS)
        ]
        return np.concatenate(parts)


def _same(action: Tree, other: Tree) -> Tensor:
    """log of 1 where two actions `[N, …]` are equal, else of 0."""
    pairs = zip(tree_leaves(action), tree_leaves(other), strict=True)
    equal = torch.stack([(a == b).reshape(len(a), -1).all(-1) for a, b in pairs]).all(0)
    return torch.where(equal, 0.0, -torch.inf)


def _wis(look: _Look, behaviour: np.ndarray | None) -> Estimate:
    """Per-decision weighted importance sampling."""
    try:
        own = look.log_prob()
        behaviour = look.behaviour_log_prob() if behaviour is None else behaviour
    except TypeError as error:
        return Estimate(
            "wis", None, None, (f"{error} (--stochastic evaluates samples, where there are any)",)
        )
    data, gamma = look.buffer.dataset, look.buffer.spec.gamma
    episodes = side_by_side(own - behaviour, data.reward, data.terminated, data.rows.starts)
    weight = step_weights(episodes)
    if not weight.any():
        reason = "no episode has weight: the policy does nothing of what the data does at its first steps"
        return Estimate("wis", None, None, (reason,))
    value = float(weighted_return(weight, episodes.reward, gamma)[0])
    drawn = resamples(data.episodes, SAMPLES, look.streams.numpy("wis"))
    bounds = interval(weighted_return(weight, episodes.reward, gamma, drawn))
    size, share = effective_size(weight), np.cumsum(gamma ** np.arange(weight.shape[1], dtype=np.float64))
    early = size[: int(np.searchsorted(share, 0.95 * share[-1])) + 1]
    least, steps = float(early.min()), np.flatnonzero(size < LEAST_EPISODES)
    found = {"effective_episodes": least, "steps_told": float(steps[0] if len(steps) else len(size))}
    reasons = _of_few(data.episodes)
    if not reasons and least < LEAST_EPISODES:
        reasons.append(
            f"from step {int(found['steps_told'])} on fewer than {LEAST_EPISODES:.0f} episodes have weight (at least "
            f"{least:.1f} of {data.episodes:,}): the policy does other things than the data"
        )
    return Estimate("wis", value, bounds, tuple(reasons), found)


def _fqe(look: _Look, cfg: FittedQConfig, outside: float) -> Estimate:
    """Fitted-Q evaluation; members and episodes are resampled for the interval."""
    buffer, agent = look.buffer, look.agent
    data, worth = buffer.dataset, buffer.worth
    space = agent.action_map.policy_space
    try:
        fitted = FittedQ(
            cfg, look.act, agent.observation_space, space, look.normalizer, data.episodes, worth, look.seed
        ).to(agent.device)
    except ConfigError as error:
        return Estimate("fqe", None, None, (error.faults[0].message,))
    draws, errors, values = look.streams.torch("fqe"), [], []
    starts = tree_map(
        lambda leaf: torch.as_tensor(leaf, device=agent.device), data.obs(data.rows.starts[:-1])
    )
    tenth, began = max(1, cfg.updates // 10), time.monotonic()
    for step in range(1, cfg.updates + 1):
        errors.append(fitted.update(buffer.sample(draws, cfg.batch_size)))
        if step % tenth == 0 and (took := time.monotonic() - began) >= SLOW_S:
            left = took / step * (cfg.updates - step)
            log.info(
                "fitted-Q evaluation: %s of %s updates, %.0f s left", f"{step:,}", f"{cfg.updates:,}", left
            )
        if step % tenth == 0 or step == cfg.updates:
            values.append(_of_starts(fitted, starts, look.deterministic))
    last = values[-1]  # [E members, episodes]
    rng = look.streams.numpy("fqe")
    drawn = resamples(data.episodes, SAMPLES, rng) / data.episodes
    chosen = rng.integers(0, len(last), SAMPLES)
    bounds = interval((drawn * last[chosen]).sum(1))
    kinds = {
        name: float(np.mean([float(each[name]) for each in errors[-tenth:]]))
        for name in errors[0]
        if "error" in name
    }
    moved = abs(float(last.mean()) - float(values[max(0, len(values) - 3)].mean()))
    found = {**kinds, "moved": moved, "spread": float(last.mean(1).std()), "outside": outside}
    doubts = [*_of_few(data.episodes), *_doubts(found, last, worth, fitted.unit)]
    return Estimate("fqe", float(last.mean()), bounds, tuple(doubts), found)


def _of_few(episodes: int) -> list[str]:
    """What speaks against an interval that is over the resampled episodes of few."""
    if episodes >= LEAST_EPISODES:
        return []
    return [
        f"the data has {counted(episodes, 'episode', 'episodes')}, too few to tell how far the value may be off"
    ]


def _doubts(found: dict[str, float], values: np.ndarray, worth: Any, unit: float) -> list[str]:
    """What speaks against an estimate of fitted-Q evaluation."""
    doubts, mean = [], float(values.mean())
    near = NEAR * (max(abs(worth.low), abs(worth.high)) or 1.0)
    if not worth.low - near <= mean <= worth.high + near:
        doubts.append(
            f"it is outside of what such rewards can add up to ({worth.low:.4g} to {worth.high:.4g})"
        )
    if found["outside"] > MOST_OUTSIDE:
        doubts.append(
            f"in {100 * found['outside']:.0f} % of places the policy does what the data hardly ever does, so that Q is "
            "a guess there"
        )
    if found["held_out_error"] > 2.0 * found["error"] > 0.0:
        doubts.append(
            f"errors on held-out episodes are {found['held_out_error'] / found['error']:.1f} times those on the others"
        )
    if found["moved"] > 0.1 * unit:
        doubts.append(
            f"it still moves, by {found['moved']:.3g} in the last fifth of its updates: give it more"
        )
    return doubts


def _of_starts(fitted: FittedQ, starts: Tree, deterministic: bool) -> np.ndarray:
    """`[E, episodes]`: values of first observations; of a policy that draws, the mean over several draws."""
    return np.mean([fitted.values(starts) for _ in range(1 if deterministic else 8)], axis=0)
