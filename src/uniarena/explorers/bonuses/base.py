"""What bonuses have in common: a weight, a scale, statistics of observations, and training on a share of the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from uniarena.batch import Batch, Rollout, Tree
from uniarena.config import ConfigError, config
from uniarena.explorers.bonuses.scale import BonusScale
from uniarena.nets.encoders import build_encoder
from uniarena.nets.initialization import orthogonal_
from uniarena.nets.leaves import leaves
from uniarena.nets.mlp import MLP
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.ops.returns import known_successors, successors
from uniarena.ops.statistics import Metrics, RunningMean, mean_and_std
from uniarena.optim import Minimize, OptimizerConfig, ScheduleConfig, build_optimizer, make_schedule
from uniarena.seeding import preserved_globals

WHERE = "agent.intrinsic"


@config
class BonusConfig:
    """What every bonus that learns has."""

    reward_scale: float | ScheduleConfig = (
        0.5  # weight of the bonus; may be a schedule, which ends at 0 where exploring should end
    )
    scale: Literal["running_std", "learned", "fixed"] = (
        "running_std"  # what the novelty is divided by before the weight; with replay its root mean square
    )
    feature_dim: int = 128  # width of the features or of the embedding that is predicted
    hidden_sizes: tuple[int, ...] = (64, 64)  # of its networks
    learning_rate: float = 1e-4
    update_proportion: float = 0.25  # share of each batch that it learns from, so that the bonus lasts
    update_period: int = 1  # updates of the agent per update of the bonus
    batch_size: int = 256  # rows of one gradient step
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
                hint="0.25 trains on a quarter of every batch.",
            )


class Bonus(nn.Module):
    """A bonus that learns; a subclass gives `novelty` and `loss` of rows and calls `_train` with its networks.

    Float Boxes are normalised by statistics of the bonus's own; images go in as their encoder scales them.

    Args:
        observation_space: of one environment.
        action_space: what the policy acts in.
        cfg: see `BonusConfig`.
        rng: initial weights and choice of rows.

    Attributes:
        reads: fields of a row that `novelty` and `loss` ask for.
    """

    reads: ClassVar[tuple[str, ...]] = ("obs", "action", "next_obs")

    def __init__(
        self, observation_space: Space[Any], action_space: Space[Any], cfg: BonusConfig, rng: torch.Generator
    ) -> None:
        super().__init__()
        self.cfg, self.rng = cfg, rng
        self.spaces = observation_space, action_space
        self.normalizer = own_normalizer(observation_space, cfg.observation_clip)
        self.scale = BonusScale(cfg.scale, cfg.gamma, cfg.scale_learning_rate)
        self.minimize = Minimize()
        self._weight = make_schedule(cfg.reward_scale)
        self._updates = 0
        self._seen: Metrics = {}

    # -- for subclasses --------------------------------------------------------------------------------------------
    def novelty(self, rows: Batch) -> Tensor:
        """How new rows are, `[N]`, unscaled and ≥ 0; called without gradients."""
        raise NotImplementedError

    def loss(self, rows: Batch) -> tuple[Tensor, Metrics]:
        """What is minimised on a minibatch of rows; `novelty` among the metrics, a 0-d mean, moves a learned scale."""
        raise NotImplementedError

    def _embedding(self, hidden_sizes: tuple[int, ...]) -> nn.Module:
        """Encoder and layers from an observation to `feature_dim` features."""
        encoder = build_encoder(self.spaces[0], where=WHERE)
        network = nn.Sequential(encoder, MLP(encoder.out_dim, hidden_sizes, "relu", self.cfg.feature_dim))
        orthogonal_(network)
        return network

    def _train(self, *modules: tuple[str, nn.Module]) -> None:
        """The named modules are what `loss` trains."""
        named = [(f"{prefix}.{name}", p) for prefix, m in modules for name, p in m.named_parameters()]
        self._optimizer = build_optimizer(named, OptimizerConfig(), self.cfg.learning_rate, WHERE)

    def _normal(self, obs: Tree) -> Tree:
        return obs if self.normalizer is None else self.normalizer(obs)

    # -- the contract ----------------------------------------------------------------------------------------------
    def weight(self, progress: float) -> float:
        """The factor of the bonus in the total reward at this fraction of the run."""
        return self._weight(progress)

    @torch.no_grad()
    def bonus(self, rollout: Rollout) -> Tensor:
        """The bonus of every row, `[T, B]`, unweighted; 0 where a row is not valid or its successor was lost.

        Call it once a chunk, in order: the statistics of observations and novelty take the chunk in first.
        """
        valid, following = known(rollout), successors(rollout)
        self._take_in(following, valid)
        return self._scaled(self.novelty(self._rows(rollout, following)).reshape(valid.shape), valid)

    @torch.no_grad()
    def bonus_of_rows(self, rows: Batch) -> Tensor:
        """The bonus of replayed rows, `[M]`, unweighted; 0 where a row is not valid.

        Call it once a sample: the statistics of observations and novelty take the sample in first.
        """
        self._take_in(rows.next_obs, rows.valid)
        return self._scaled(self.novelty(rows), rows.valid)

    def learn(self, sample: Rollout | Batch) -> Metrics:
        """Train on a random share of the rows, every `update_period` calls.

        Args:
            sample: a rollout, or the rows `[M]` that were replayed.

        Returns:
            mean and standard deviation of the newest bonuses, and the losses where it was trained.
        """
        self._updates += 1
        valid = known(sample).flatten() if isinstance(sample, Rollout) else sample.valid
        rows = valid.nonzero().squeeze(1)
        if (self._updates - 1) % self.cfg.update_period or not len(rows):
            return dict(self._seen)
        order = torch.randperm(len(rows), generator=self.rng, device=self.rng.device).to(rows.device)
        chosen = rows[order[: math.ceil(len(rows) * self.cfg.update_proportion)]]
        flat = (
            self._rows(sample, successors(sample))
            if isinstance(sample, Rollout)
            else sample.select(*self.reads)
        )
        mean = RunningMean()
        for batch in flat[chosen].minibatches(self.cfg.batch_size, 1, self.rng):
            metrics = self.minimize(self.loss, batch, self._optimizer)
            self.scale.learn(self.minimize, metrics.pop("novelty", metrics["loss"]))
            metrics["predictor_loss"] = metrics.pop("loss")
            mean.add(metrics)
        return {**self._seen, **mean.result()}

    def _rows(self, rollout: Rollout, following: Tree) -> Batch:
        """The steps of a chunk, `[T·B]`, with the fields in `reads`."""
        fields = {name: following if name == "next_obs" else rollout.rows[name] for name in self.reads}
        return Batch(rollout.rows.shape, fields).flatten()

    def _take_in(self, following: Tree, valid: Tensor) -> None:
        if self.normalizer is not None:
            self.normalizer.accumulate(following, valid)
            self.normalizer.merge()

    def _scaled(self, novelty: Tensor, valid: Tensor) -> Tensor:
        bonus: Tensor = self.scale(torch.where(valid, novelty, 0.0), valid)
        mean, std = mean_and_std(bonus, valid)
        self._seen = {"intrinsic_mean": mean.float(), "intrinsic_std": std.float()}
        return bonus

    def get_extra_state(self) -> dict[str, Any]:
        """What `state_dict` holds beside the tensors of networks and statistics."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "updates": self._updates,
            "seen": dict(self._seen),
            "rng": self.rng.get_state(),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Called by `load_state_dict`."""
        self._optimizer.load_state_dict(state["optimizer"])
        self._seen = {name: value.clone() for name, value in state["seen"].items()}
        self._updates = int(state["updates"])
        self.rng.set_state(state["rng"])


@contextmanager
def drawing_from(rng: torch.Generator) -> Iterator[None]:
    """Inside, layers, which draw their first weights from the global stream, draw them from a seed of `rng`."""
    with preserved_globals():
        torch.manual_seed(int(torch.randint(2**31, (), generator=rng, device=rng.device)))
        yield


def own_normalizer(space: Space[Any], clip: float) -> ObservationNormalizer | None:
    """Statistics of a bonus's own for the float Boxes of `space`; None where there is none."""
    floats = (leaf for _, leaf in leaves(space) if isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f")
    return None if next(floats, None) is None else ObservationNormalizer(space, clip=clip)


def known(rollout: Rollout) -> Tensor:
    """The valid rows `[T, B]` whose successor is known."""
    valid, found = rollout.rows.valid, known_successors(rollout)
    return valid if found is None else valid & found
