"""Named policy gradients: frozen defaults of the one learner."""

from __future__ import annotations

from typing import Literal

from uniarena.config import config
from uniarena.learners.base import Preset
from uniarena.learners.on_policy.config import PolicyGradientConfig
from uniarena.learners.on_policy.policy_gradient import PolicyGradient
from uniarena.optim import GradNorm, LearningRate, OptimizerConfig


@config
class RMSpropConfig(OptimizerConfig):
    """The optimiser of A2C where its section names no other."""

    type: str = "rmsprop"  # α is 0.99 there, torch's own default


@config
class A2CConfig(PolicyGradientConfig):
    """Advantage actor-critic: one unclipped step on each short rollout.

    Mnih et al. 2016 (arXiv:1602.01783), section 4 and supplement 8: 5 steps, returns bootstrapped at the
    rollout's end, RMSProp with α = 0.99 and learning rate near 7e-4. The synchronous form is that of Wu et
    al. 2017 (arXiv:1708.05144).
    """

    learning_rate: LearningRate = 7e-4
    n_steps: int = 5
    batch_size: int | None = None
    n_epochs: int = 1
    gae_lambda: float = 1.0
    normalize_advantage: bool = False
    clip: Literal["none", "hard", "dual"] = "none"
    optimizer: RMSpropConfig = RMSpropConfig()


@config
class TRPOConfig(PolicyGradientConfig):
    """One natural step for the policy on each rollout, and epochs of minibatches for the value.

    Schulman et al. 2015 (arXiv:1502.05477), table 2: δ = 0.01; damping 0.1. The value's optimiser and minibatches are
    those of Stable-Baselines3's contributions.
    """

    policy_step: Literal["gradient", "natural"] = "natural"
    target_kl: float | None = 0.01  # largest KL of a step
    clip: Literal["none", "hard", "dual"] = "none"
    learning_rate: LearningRate = 1e-3  # of the value
    batch_size: int | None = 128
    max_grad_norm: GradNorm = None


PPO = Preset(PolicyGradient, PolicyGradientConfig, "Schulman et al. 2017, arXiv:1707.06347")
A2C = Preset(PolicyGradient, A2CConfig, "Mnih et al. 2016, arXiv:1602.01783")
TRPO = Preset(PolicyGradient, TRPOConfig, "Schulman et al. 2015, arXiv:1502.05477")
