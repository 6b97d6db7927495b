"""Random network distillation: what a network cannot predict about an observation is how new that one is.

Burda et al. 2018 (arXiv:1810.12894). A fixed random network embeds the observation that an action led to, a
second one learns to predict the embedding, and the squared error is the bonus. Deviations: one stream of
rewards (extrinsic plus weighted bonus, ended with the episode) and one value function instead of two; the
first chunk itself sets the observation statistics, rather than a random agent before training. With replay there is no
running return of a column, so `running_std` divides by the root mean square of all sampled errors.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from uniarena.batch import Batch, Rollout, Tree, tree_map
from uniarena.config import ConfigError, config
from uniarena.nets.encoders import build_encoder
from uniarena.nets.initialization import orthogonal_
from uniarena.nets.leaves import leaves
from uniarena.nets.mlp import MLP
from uniarena.nets.normalizer import Moments, ObservationNormalizer
from uniarena.ops.returns import known_successors, running_return, successors
from uniarena.ops.statistics import Metrics, RunningMean, mean_and_std
from uniarena.optim import (
    Minimize,
    Optimizer,
    OptimizerConfig,
    ScheduleConfig,
    build_optimizer,
    make_schedule,
)
from uniarena.seeding import preserved_globals


@config
class RNDConfig:
    """Random network distillation."""

    reward_scale: float | ScheduleConfig = (
        0.5  # weight of the bonus; the paper's 1 against 2 for the environment's reward
    )
    scale: Literal["running_std", "learned", "fixed"] = (
        "running_std"  # what the error is divided by before the weight; with replay its root mean square
    )
    feature_dim: int = 128  # width of the embedding that is predicted
    hidden_sizes: tuple[int, ...] = (
        64,
        64,
    )  # of the target; the predictor has two more layers of the last width
    learning_rate: float = 1e-4
    update_proportion: float = (
        0.25  # share of each batch that the predictor learns from, so that the bonus lasts
    )
    update_period: int = 1  # updates of the agent per update of the predictor
    batch_size: int = 256  # rows of one gradient step of the predictor
    gamma: float = 0.99  # running_std: discount of the intrinsic return whose standard deviation is the scale
    scale_learning_rate: float = 1e-2  # learned: of the scale's logarithm
    observation_clip: float = 5.0  # normalised observations are clipped to ± this

    def __post_init__(self) -> None:
        for name in ("feature_dim", "learning_rate", "update_period", "batch_size", "observation_clip"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"got {getattr(self, name)}; expected a number above 0.", path=name)
        if not 0.0 < self.update_proportion <= 1.0:
            raise ConfigError(
                f"got {self.update_proportion}; expected a share of the batch, above 0 and at most 1.",
                path="update_proportion",
                hint="0.25 trains the predictor on a quarter of every batch.",
            )


class RND(nn.Module):
    """A bonus for observations that a predictor does not know yet.

    Float Boxes are normalised by statistics of its own; images go in as their encoder scales them.

    `scale` says what the mean squared error is divided by: `running_std` the standard deviation of the
    running discounted sum of errors (of each column, over the ends of episodes, as in the paper; of sampled
    rows, which have no column, the root mean square of all errors so far); `fixed` nothing; `learned` exp(s)
    of one learned number s, which descends mean(error · exp(−s)) + s. That is least where
    exp(s) = mean(error), so that the mean bonus stays near 1 while errors shrink. s starts at the first
    chunk's log mean error and does not touch the predictor.

    Args:
        observation_space: of one environment.
        cfg: see `RNDConfig`.
        rng: initial weights and choice of rows.
    """

    Config = RNDConfig

    def __init__(self, observation_space: Space[Any], cfg: RNDConfig, rng: torch.Generator) -> None:
        super().__init__()
        self.cfg, self.rng = cfg, rng
        floats = [
            leaf
            for _, leaf in leaves(observation_space)
            if isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f"
        ]
        self.normalizer = (
            ObservationNormalizer(observation_space, clip=cfg.observation_clip) if floats else None
        )
        deeper = (*cfg.hidden_sizes, *cfg.hidden_sizes[-1:] * 2)
        with preserved_globals():  # layers draw their first weights from the global stream
            torch.manual_seed(int(torch.randint(2**31, (), generator=rng, device=rng.device)))
            self.target = self._network(observation_space, cfg.hidden_sizes).requires_grad_(False)
            self.predictor = self._network(observation_space, deeper)
        self.moments = Moments(1)
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.minimize = Minimize()
        self._weight = make_schedule(cfg.reward_scale)
        self._optimizer = self._adam(self.predictor.named_parameters(), cfg.learning_rate)
        self._scale_optimizer = self._adam([("log_scale", self.log_scale)], cfg.scale_learning_rate)
        self._returns: Tensor | None = None
        self._updates, self._started = 0, False
        self._seen: Metrics = {}

    def _network(self, space: Space[Any], hidden_sizes: tuple[int, ...]) -> nn.Module:
        encoder = build_encoder(space, where="agent.intrinsic")
        network = nn.Sequential(encoder, MLP(encoder.out_dim, hidden_sizes, "relu", self.cfg.feature_dim))
        orthogonal_(network)
        return network

    @staticmethod
    def _adam(named_parameters: Any, learning_rate: float) -> Optimizer:
        return build_optimizer(named_parameters, OptimizerConfig(), learning_rate, "agent.intrinsic")

    def weight(self, progress: float) -> float:
        """The factor of the bonus in the total reward at this fraction of the run."""
        return self._weight(progress)

    @torch.no_grad()
    def bonus(self, rollout: Rollout) -> Tensor:
        """The bonus of every row, `[T, B]`, unweighted; 0 where a row is not valid or its successor was lost.

        Call it once a chunk, in order: the statistics of observations and errors take the chunk in first.
        """
        valid, following = rollout.rows.valid, successors(rollout)
        known = known_successors(rollout)
        if known is not None:
            valid = valid & known
        flat = tree_map(lambda leaf: leaf.flatten(0, 1), following)
        error = self._new_errors(following, flat, valid)
        return self._scaled(error, self._scale(error, valid), valid)

    @torch.no_grad()
    def bonus_of_rows(self, rows: Batch) -> Tensor:
        """The bonus of replayed rows, `[M]`, unweighted; 0 where a row is not valid.

        Call it once a sample: the statistics of observations and errors take the sample in first.
        """
        error = self._new_errors(rows.next_obs, rows.next_obs, rows.valid)
        return self._scaled(error, self._scale_of_rows(error, rows.valid), rows.valid)

    def _new_errors(self, following: Tree, flat: Tree, valid: Tensor) -> Tensor:
        """The errors at successors `following`, shaped as `valid`, after their statistics took these in."""
        if self.normalizer is not None:
            self.normalizer.accumulate(following, valid)
            self.normalizer.merge()
        return torch.where(valid, self._errors(flat).reshape(valid.shape), 0.0)

    def _scaled(self, error: Tensor, scale: Tensor, valid: Tensor) -> Tensor:
        bonus = error / scale
        mean, std = mean_and_std(bonus, valid)
        self._seen = {"intrinsic_mean": mean.float(), "intrinsic_std": std.float()}
        return bonus

    def learn(self, sample: Rollout | Batch) -> Metrics:
        """Train the predictor on a random share of the rows, every `update_period` calls.

        Args:
            sample: a rollout, or the rows `[M]` that were replayed.

        Returns:
            mean and standard deviation of the newest bonuses, and the predictor's loss where it was trained.
        """
        self._updates += 1
        if isinstance(sample, Rollout):
            valid, known = sample.rows.valid, known_successors(sample)
            rows = (valid if known is None else valid & known).flatten().nonzero().squeeze(1)
        else:
            rows = sample.valid.nonzero().squeeze(1)
        if (self._updates - 1) % self.cfg.update_period or not len(rows):
            return dict(self._seen)
        order = torch.randperm(len(rows), generator=self.rng, device=self.rng.device).to(rows.device)
        chosen = rows[order[: math.ceil(len(rows) * self.cfg.update_proportion)]]
        if isinstance(sample, Rollout):
            following = tree_map(lambda leaf: leaf.flatten(0, 1), successors(sample))
        else:
            following = sample.next_obs
        obs = tree_map(lambda leaf: leaf.index_select(0, chosen), following)
        mean = RunningMean()
        for batch in Batch((len(chosen),), obs=obs).minibatches(self.cfg.batch_size, 1, self.rng):
            metrics = self.minimize(self._loss, batch, self._optimizer)
            if self.cfg.scale == "learned":
                self.minimize(self._scale_loss, metrics["loss"], self._scale_optimizer)
            mean.add({"predictor_loss": metrics["loss"]})
        return {**self._seen, **mean.result()}

    def _errors(self, obs: Tree) -> Tensor:
        """Mean squared error of the predicted embedding, `[N, …] → [N]`."""
        if self.normalizer is not None:
            obs = self.normalizer(obs)
        error: Tensor = (self.predictor(obs) - self.target(obs)).square().mean(-1)
        return error

    def _loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        return self._errors(batch.obs).mean(), {}

    def _scale_loss(self, error: Tensor) -> tuple[Tensor, Metrics]:
        return error * torch.exp(-self.log_scale) + self.log_scale, {}

    def _scale(self, error: Tensor, valid: Tensor) -> Tensor:
        """What errors are divided by, after taking these `[T, B]` into account."""
        if self.cfg.scale != "running_std":
            return self._plain_scale(error, valid)
        if self._returns is None or len(self._returns) != error.shape[1]:
            self._returns = torch.zeros_like(error[0])
        history = running_return(error, torch.where(valid, self.cfg.gamma, 1.0), self._returns)
        self._returns = history[-1].clone()
        self.moments.add(history.reshape(-1, 1), valid.flatten())
        return (self.moments.variance() + 1e-8).sqrt().to(error.dtype)

    def _scale_of_rows(self, error: Tensor, valid: Tensor) -> Tensor:
        """What errors are divided by, after taking these `[M]` of replayed rows into account."""
        if self.cfg.scale != "running_std":
            return self._plain_scale(error, valid)
        self.moments.add(error[:, None], valid)
        square = self.moments.variance() + self.moments.mean.square()
        return (square + 1e-8).sqrt().to(error.dtype)

    def _plain_scale(self, error: Tensor, valid: Tensor) -> Tensor:
        if self.cfg.scale == "fixed":
            return torch.ones_like(self.log_scale)
        if not self._started:
            self.log_scale.copy_(mean_and_std(error, valid)[0].clamp(min=1e-8).log())
            self._started = True
        return self.log_scale.exp()

    def get_extra_state(self) -> dict[str, Any]:
        """What `state_dict` holds beside the tensors of networks and statistics."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "scale_optimizer": self._scale_optimizer.state_dict(),
            "returns": self._returns,
            "updates": self._updates,
            "started": self._started,
            "seen": dict(self._seen),
            "rng": self.rng.get_state(),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Called by `load_state_dict`."""
        self._optimizer.load_state_dict(state["optimizer"])
        self._scale_optimizer.load_state_dict(state["scale_optimizer"])
        device = self.log_scale.device
        self._returns = None if state["returns"] is None else state["returns"].to(device, copy=True)
        self._seen = {name: value.clone() for name, value in state["seen"].items()}
        self._updates, self._started = int(state["updates"]), bool(state["started"])
        self.rng.set_state(state["rng"])
