"""Conservative Q-learning: critics that value actions the data lacks no higher than those that it has.

Kumar et al. 2020 (arXiv:2006.04779), eq. 4 and appendix F. Deviations: half of the sampled actions are uniform and half
the policy's, as eq. 4 has them; the authors' code adds the policy's actions at the next observation, and leaves the
number of samples undivided. Log-densities are of actions scaled to [-1, 1].
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from uniarena.batch import Batch, Tree, tree_map
from uniarena.config import Between, ConfigError, config
from uniarena.learners.off_policy.actor_critic import draw_noise
from uniarena.ops.offline import log_integral, log_sum
from uniarena.ops.statistics import Metrics
from uniarena.optim import Derived, LearningRate, Minimize, OptimizerConfig, build_optimizer
from uniarena.optim.schedules import ScheduleConfig, make_schedule

LARGEST = 1e6
"""Of an adapted weight, as in the authors' code."""


@config
class ConservativeConfig:
    """What keeps values of actions that the data lacks low."""

    weight: Annotated[float | ScheduleConfig, Between(0)] = (
        5.0  # of the gap, beside half the squared TD error; or its schedule
    )
    samples: Annotated[int, Between(1)] = 10  # uniform actions for each row, and as many of the policy's
    threshold: float | None = (
        None  # the gap that the weight is adapted to (Lagrange); null: the weight is fixed
    )
    learning_rate: LearningRate = 3e-4  # of the adapted weight's logarithm

    def __post_init__(self) -> None:
        if self.threshold is not None and (isinstance(self.weight, ScheduleConfig) or self.weight == 0.0):
            raise ConfigError(
                "a weight that is adapted to a threshold begins at a number above 0.",
                path="weight",
                hint="give a number, or leave threshold out.",
            )


class Conservative(nn.Module):
    """The gap log E exp Q - Q(s, a) of every critic, its weight, and the optimiser of an adapted one.

    Args:
        cfg: the section.
        model: policy and critics.

    Attributes:
        optimizer: None where the weight is fixed.

    Raises:
        ConfigError: actions without bounds.
    """

    def __init__(self, cfg: ConservativeConfig, model: Any) -> None:
        super().__init__()
        if model.scale is not None:
            model.scale.require_bounds("conservative Q-learning")  # nothing is uniform without them
        adapted = cfg.threshold is not None
        self.cfg, self._model = cfg, (model,)  # in a tuple: it is no part of this one
        self._fixed = None if adapted else make_schedule(cfg.weight, "learner.conservative.weight")
        first = 1.0 if self._fixed is not None else float(cfg.weight)  # type: ignore[arg-type]
        self.log_weight = nn.Parameter(torch.tensor(math.log(first)), requires_grad=adapted)
        alone = [("conservative.log_weight", self.log_weight)]
        self.optimizer = (
            build_optimizer(alone, OptimizerConfig(eps=1e-8), cfg.learning_rate) if adapted else None
        )

    def weight(self, progress: float = 0.0) -> Tensor:
        """0-d, without gradient, at this fraction of the run."""
        if self._fixed is not None:
            return torch.tensor(self._fixed(progress), device=self.log_weight.device)
        return self.log_weight.detach().exp().clamp(max=LARGEST)

    def penalty(
        self, batch: Batch, q: Tensor, rng: torch.Generator, progress: float = 0.0
    ) -> tuple[Tensor, Metrics]:
        """Weight times the gap, summed over critics, and the gap.

        Args:
            batch: rows `[N]`, with normalised `inputs`.
            q: `[E, N]` (or `[E, N, M]` quantiles) of the data's actions.
            progress: fraction of the run that is done.
        """
        (model,) = self._model
        values = q if q.dim() == 2 else q.mean(-1)
        if model.scale is None:
            above = log_sum(model.q(batch.inputs, generator=rng), model.policy.mask(batch.obs))
        else:
            above = self._above(batch, rng)
        gap = (above - values).mean(1)
        mean = gap.detach().mean()
        weight = self.weight(progress)
        return weight * gap.sum(), {"conservative_gap": mean, "conservative_weight": weight}

    def _above(self, batch: Batch, rng: torch.Generator) -> Tensor:
        """`[E, N]`: log of the integral of exp Q over all actions."""
        (model,), count = self._model, self.cfg.samples
        rows, dims = len(batch), model.scale.dims
        inputs = tree_map(lambda leaf: leaf.repeat_interleave(count, dim=0), batch.inputs)
        obs = tree_map(lambda leaf: leaf.repeat_interleave(count, dim=0), batch.obs)
        with torch.no_grad():
            noise = draw_noise(model.policy.head, inputs, rng)
            action, log_prob = model.dist(inputs, obs).sample_with_log_prob(rng, noise)
        own = model.scale(action)
        uniform = 2.0 * torch.rand(own.shape, generator=rng, device=rng.device).to(own.device) - 1.0
        q = torch.cat([self._q(inputs, each, rng, rows) for each in (uniform, own)], dim=-1)
        density = torch.full((rows, count), -dims * math.log(2.0), device=own.device)
        own_density = (log_prob + model.scale.log_half).reshape(rows, count)
        return log_integral(q, torch.cat([density, own_density], dim=-1))

    def _q(self, inputs: Tree, action: Tensor, rng: torch.Generator, rows: int) -> Tensor:
        """`[E, N, S]` of actions `[N * S, D]`."""
        q: Tensor = self._model[0].q(inputs, action, rng)
        return (q if q.dim() == 2 else q.mean(-1)).unflatten(1, (rows, -1))

    def update(self, minimize: Minimize, gap: Tensor) -> None:
        """One step of an adapted weight: it grows while the gap is larger than wanted."""
        if self.optimizer is not None and self.cfg.threshold is not None:
            minimize(self.loss, gap - self.cfg.threshold, self.optimizer)

    def loss(self, excess: Tensor) -> tuple[Derived, Metrics]:
        """Minus the weight times the excess, in the logarithm of the weight."""
        weight, log_weight = self.weight(), self.log_weight

        def backward() -> None:
            step = -weight * excess
            log_weight.grad = step.clone() if log_weight.grad is None else log_weight.grad + step

        return Derived(-weight * excess, backward), {}
