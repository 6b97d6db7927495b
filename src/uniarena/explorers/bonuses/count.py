"""Counting: the n-th visit to a place is worth 1/√n.

Tang et al. 2017 (arXiv:1611.04717), section 2.2: places are told apart by a hash of the observation, the signs of
random projections (SimHash), so that near observations share a count. Deviations: each projection has a random offset,
without which two observations in the same direction from the mean would be one place however far apart they are; the
statistics that observations are normalised by stand still after `statistics_rows`, so that a place keeps its hash.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from gymnasium import Space
from torch import Tensor, nn

from uniarena.batch import Batch, Rollout, Tree
from uniarena.config import ConfigError, config
from uniarena.explorers.bonuses.base import WHERE, drawing_from, known, own_normalizer
from uniarena.explorers.bonuses.scale import BonusScale
from uniarena.nets.encoders import build_encoder
from uniarena.ops.returns import successors
from uniarena.ops.statistics import Metrics, mean_and_std
from uniarena.optim import Minimize, ScheduleConfig, make_schedule

MAX_BITS = 62
"""Bits of a hash that an int64 holds, apart from its sign."""


@config
class CountConfig:
    """Counts of hashed observations."""

    reward_scale: float | ScheduleConfig = 0.1  # weight of the bonus
    scale: Literal["running_std", "learned", "fixed"] = (
        "fixed"  # what 1/√n is divided by before the weight; it lies between 0 and 1 by itself
    )
    code_bits: int = 32  # of the hash: more tell finer places apart
    statistics_rows: int = 10_000  # rows that the statistics of observations are made of
    update_period: int = 1  # chunks per chunk that is counted
    gamma: float = 0.99  # running_std: discount of the intrinsic return whose standard deviation is the scale
    scale_learning_rate: float = 1e-2  # learned: of the scale's logarithm
    observation_clip: float = 5.0  # normalised observations are clipped to ± this

    def __post_init__(self) -> None:
        for name in ("statistics_rows", "update_period", "observation_clip"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"got {getattr(self, name)}; expected a number above 0.", path=name)
        if not 1 <= self.code_bits <= MAX_BITS:
            raise ConfigError(f"got {self.code_bits}; expected 1 to {MAX_BITS} bits.", path="code_bits")


class Count(nn.Module):
    """A bonus for places that were visited seldom: 1/√n of the observation that an action led to.

    Args:
        observation_space: of one environment.
        action_space: not looked at.
        cfg: see `CountConfig`.
        rng: the random projections.
    """

    Config = CountConfig
    projection: Tensor
    offset: Tensor
    powers: Tensor

    def __init__(
        self, observation_space: Space[Any], action_space: Space[Any], cfg: CountConfig, rng: torch.Generator
    ) -> None:
        super().__init__()
        self.cfg = cfg
        with drawing_from(rng):
            self.encoder = build_encoder(observation_space, where=WHERE).requires_grad_(False)
        self.normalizer = own_normalizer(observation_space, cfg.observation_clip)
        shape = (self.encoder.out_dim, cfg.code_bits)
        draws = [torch.randn(size, generator=rng, device=rng.device) for size in (shape, shape[1:])]
        for name, draw in zip(("projection", "offset"), draws, strict=True):
            self.register_buffer(name, draw.cpu())
        self.register_buffer("powers", 2 ** torch.arange(cfg.code_bits), persistent=False)
        self.scale = BonusScale(cfg.scale, cfg.gamma, cfg.scale_learning_rate)
        self.minimize = Minimize()
        self._weight = make_schedule(cfg.reward_scale)
        self._counts: dict[int, int] = {}
        self._chunks = self._rows = 0
        self._seen: Metrics = {}

    def weight(self, progress: float) -> float:
        """The factor of the bonus in the total reward at this fraction of the run."""
        return self._weight(progress)

    @torch.no_grad()
    def observe(self, rollout: Rollout) -> None:
        """Count the places that a chunk came to, every `update_period` chunks."""
        valid, following = known(rollout), successors(rollout)
        if self.normalizer is not None and self._rows < self.cfg.statistics_rows:
            self.normalizer.accumulate(following, valid)
            self.normalizer.merge()
            self._rows += int(valid.sum())
        self._chunks += 1
        if (self._chunks - 1) % self.cfg.update_period == 0:
            codes, visits = self.codes(following)[valid].unique(return_counts=True)
            for code, n in zip(codes.tolist(), visits.tolist(), strict=True):
                self._counts[code] = self._counts.get(code, 0) + n

    @torch.no_grad()
    def bonus(self, rollout: Rollout) -> Tensor:
        """The bonus of every row, `[T, B]`, unweighted; 0 where a row is not valid or its successor was lost.

        `observe` comes first: 1 is the bonus of a first visit.
        """
        return self._scaled(self.codes(successors(rollout)), known(rollout))

    @torch.no_grad()
    def bonus_of_rows(self, rows: Batch) -> Tensor:
        """The bonus of replayed rows, `[M]`, by the counts of now; 0 where a row is not valid."""
        return self._scaled(self.codes(rows.next_obs), rows.valid)

    def learn(self, sample: Rollout | Batch) -> Metrics:
        """Move a learned scale; returns the mean and deviation of the newest bonuses and the places known."""
        if "raw" in self._seen:
            self.scale.learn(self.minimize, self._seen["raw"])
        found = {name: value for name, value in self._seen.items() if name != "raw"}
        return {**found, "places": torch.tensor(float(len(self._counts)))}

    def codes(self, obs: Tree) -> Tensor:
        """The hash of each observation, `[…, *leaf shape]` → `[…]` int64."""
        normal = obs if self.normalizer is None else self.normalizer(obs)
        bits = self.encoder(normal) @ self.projection + self.offset > 0
        return (bits * self.powers).sum(-1)

    def _scaled(self, codes: Tensor, valid: Tensor) -> Tensor:
        places, index = codes.unique(return_inverse=True)
        visits = torch.tensor([max(self._counts.get(code, 1), 1) for code in places.tolist()])
        raw = torch.where(valid, visits.to(codes.device).float().rsqrt()[index], 0.0)
        bonus: Tensor = self.scale(raw, valid)
        mean, std = mean_and_std(bonus, valid)
        self._seen = {"intrinsic_mean": mean.float(), "intrinsic_std": std.float()}
        if self.cfg.scale == "learned":
            self._seen["raw"] = mean_and_std(raw, valid)[0].float()
        return bonus

    def get_extra_state(self) -> dict[str, Any]:
        """What `state_dict` holds beside the tensors."""
        return {
            "codes": torch.tensor(list(self._counts), dtype=torch.int64),
            "counts": torch.tensor(list(self._counts.values()), dtype=torch.int64),
            "chunks": self._chunks,
            "rows": self._rows,
            "seen": dict(self._seen),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Called by `load_state_dict`."""
        self._counts = dict(zip(state["codes"].tolist(), state["counts"].tolist(), strict=True))
        self._chunks, self._rows = int(state["chunks"]), int(state["rows"])
        self._seen = {name: value.clone() for name, value in state["seen"].items()}
