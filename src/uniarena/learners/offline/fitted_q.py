"""Fitted-Q evaluation: Q of a policy that stays as it is, from data of another one.

Le et al. 2019 (arXiv:1903.08738), algorithm 3. Deviations: a target network that follows in place of whole regressions;
every member has targets of its own and learns from its own resample of the episodes, so that their spread says how much
the data decides (Hao et al. 2021, arXiv:2102.03607); Q is learned in units of the data's own returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from uniarena.batch import Batch, Tree
from uniarena.config import Between, ConfigError, Section, config
from uniarena.envs.spaces import describe, leaf_spaces
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.ops.health import Worth
from uniarena.ops.off_policy_evaluation import resamples
from uniarena.ops.offline import held_out
from uniarena.ops.statistics import Metrics
from uniarena.ops.td import of_action, td_loss, td_target
from uniarena.optim import Minimize, OptimizerConfig, build_optimizer
from uniarena.optim.targets import Target
from uniarena.policies.action_scale import ActionScale
from uniarena.seeding import Streams, preserved_globals, seed_globals
from uniarena.values.actor_parts import critics_for, of_every_action
from uniarena.values.ensemble import EnsembleSpec

Act = Callable[[Tree], Tree]
"""Observations `[N, …]` → the evaluated policy's actions."""


@config
class FittedQConfig:
    """How long, and with what networks."""

    updates: Annotated[int, Between(1)] = 6_000
    members: Annotated[int, Between(1)] = 8  # Q-functions, each of its own resample of the episodes
    hidden_sizes: tuple[int, ...] = (128, 128)
    learning_rate: Annotated[float, Between(0, above=True)] = 5e-4
    batch_size: Annotated[int, Between(1)] = 256
    tau: Annotated[float, Between(0, 1, above=True)] = (
        0.05  # share of the way that targets move at every update
    )
    validation_share: Annotated[float, Between(0, 0.5)] = 0.2  # of the episodes, held out


class FittedQ(nn.Module):
    """Members' Q of one policy.

    Args:
        cfg: the settings.
        act: the policy.
        observation_space, policy_space: of the agent.
        normalizer: what observations pass first; None: nothing.
        episodes: how many there are in the data.
        worth: the returns of the data, in whose units Q is learned.
        seed: of weights and resamples.

    Raises:
        ConfigError: actions that are neither Boxes nor Discrete.
    """

    counts: Tensor

    def __init__(
        self,
        cfg: FittedQConfig,
        act: Act,
        observation_space: Space[Any],
        policy_space: Space[Any],
        normalizer: ObservationNormalizer | None,
        episodes: int,
        worth: Worth,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.cfg, self.act, self.normalizer = cfg, act, normalizer
        spec = EnsembleSpec(cfg.members)
        self.scale: ActionScale | None = None
        if isinstance(policy_space, spaces.Discrete):
            spec = of_every_action(spec, policy_space)
        elif all(isinstance(leaf, spaces.Box) for _, leaf in leaf_spaces(policy_space)):
            self.scale = ActionScale(policy_space, "fitted-Q evaluation")
        else:
            said = f"fitted-Q evaluation is for Box and Discrete actions; these are {describe(policy_space)}"
            raise ConfigError(said, path="method", hint="use wis")
        section = Section({"hidden_sizes": list(cfg.hidden_sizes)})
        with preserved_globals():
            seed_globals(Streams(seed).seed_for("init/fitted_q"))
            self.q = critics_for(observation_space, policy_space, section, {}, spec, self.scale)
        self.target = Target(self.q, cfg.tau)
        known = math.isfinite(worth.mean) and math.isfinite(worth.best) and worth.best > worth.mean
        self.middle = worth.mean if known else 0.0
        self.unit = worth.best - worth.mean if known else max(abs(worth.low), abs(worth.high), 1e-6)
        counts = resamples(episodes, cfg.members, Streams(seed).numpy("fitted_q"))
        self.register_buffer("counts", torch.as_tensor(counts, dtype=torch.float32))
        self.optimizer = build_optimizer(
            self.q.named_parameters(), OptimizerConfig(eps=1e-8), cfg.learning_rate
        )
        self.minimize = Minimize()

    def update(self, batch: Batch) -> Metrics:
        """One step on rows `[N]` with `obs`, `action`, `reward`, `next_obs`, `discount` and `episode_id`."""
        found = self.minimize(self.loss, batch, self.optimizer)
        self.target.update()
        return found

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Half the squared errors of rows that are not held out; `error` and `held_out_error` are mean squares."""
        with torch.no_grad():
            following = self.unscaled(self._of(self.target, batch.next_obs, self.act(batch.next_obs)))
            target = td_target(batch.reward, batch.discount, following)  # [E, N], each member's own
            target = (target - self.middle) / self.unit
        loss = td_loss(self._of(self.q, batch.obs, batch.action), target)
        out = held_out(batch.episode_id, self.cfg.validation_share)
        weight = self.counts[:, batch.episode_id] * ~out
        metrics: Metrics = {"error": _mean(2.0 * loss.detach(), (~out).float())}
        metrics["held_out_error"] = _mean(2.0 * loss.detach(), out.float())
        return (weight * loss).sum(0).mean(), metrics

    @torch.no_grad()
    def values(self, obs: Tree, action: Tree | None = None) -> np.ndarray:
        """`[E, N]`: each member's Q of actions, by default the policy's."""
        action = self.act(obs) if action is None else action
        found: np.ndarray = self.unscaled(self._of(self.q, obs, action)).double().cpu().numpy()
        return found

    def unscaled(self, q: Tensor) -> Tensor:
        """From the units that are learned to returns."""
        return self.middle + self.unit * q

    def _of(self, critics: Any, obs: Tree, action: Tree) -> Tensor:
        inputs = obs if self.normalizer is None else self.normalizer(obs)
        if self.scale is not None:
            limit = self.scale.limit
            q: Tensor = critics(inputs, self.scale(action).clamp(-limit, limit))
            return q
        return of_action(critics(inputs).movedim(0, -1), action).t()


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    """Of `[E, N]` values by weights `[N]`; 0 where all of these are 0."""
    return (values * weight).sum() / (weight.sum() * len(values)).clamp(min=1.0)
