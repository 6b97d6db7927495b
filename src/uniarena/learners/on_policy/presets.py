"""Named policy gradients: frozen defaults of the one learner."""

from __future__ import annotations

from typing import Annotated, Literal

from uniarena.config import Between, config
from uniarena.learners.base import Preset
from uniarena.learners.on_policy.config import PolicyGradientConfig
from uniarena.learners.on_policy.policy_gradient import PolicyGradient
from uniarena.ops.policy_gradient import Clip
from uniarena.optim import GradNorm, LearningRate, OptimizerConfig, ScheduleConfig


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
    clip: Clip = "none"
    optimizer: RMSpropConfig = RMSpropConfig()


@config
class TRPOConfig(PolicyGradientConfig):
    """One natural step for the policy on each rollout, and epochs of minibatches for the value.

    Schulman et al. 2015 (arXiv:1502.05477), table 2: δ = 0.01; damping 0.1. The value's optimiser and minibatches are
    those of Stable-Baselines3's contributions.
    """

    policy_step: Literal["gradient", "natural"] = "natural"
    target_kl: float | None = 0.01  # largest KL of a step
    clip: Clip = "none"
    learning_rate: LearningRate = 1e-3  # of the value
    batch_size: int | None = 128
    max_grad_norm: GradNorm = None


@config
class IMPALAConfig(PolicyGradientConfig):
    """V-trace corrects values and policy for the age of the policy that acted; one step on each rollout.

    Espeholt et al. 2018 (arXiv:1802.01561), supplement on hyperparameters: unrolls of 20 rows, RMSProp at 6e-4 (there
    with a linear decay to 0), entropy 0.01, value loss 0.5 · ½ (V − target)². Deviation: the loss is a mean, and theirs
    a sum over 20 × 32 rows, so the gradient's bound is 40 / 640, and RMSProp's ε our 1e-5, near their 0.01 / 640.
    """

    learning_rate: LearningRate = 6e-4
    n_steps: int = 20
    batch_size: int | None = None
    n_epochs: int = 1
    advantage: Literal["gae", "monte_carlo", "n_step", "vtrace"] = "vtrace"
    gae_lambda: float = 1.0
    normalize_advantage: bool = False
    clip: Clip = "truncated"
    vf_coef: Annotated[float, Between(0)] = 0.25
    ent_coef: float | ScheduleConfig | Literal["auto"] = 0.01
    max_grad_norm: GradNorm = 0.0625
    optimizer: RMSpropConfig = RMSpropConfig()


@config
class APPOConfig(PolicyGradientConfig):
    """PPO's clipped surrogate with V-trace's targets and advantages, for rollouts of an older policy.

    Petrenko et al. 2020 (arXiv:2006.11751), section 3.4; numbers of the authors' code: unrolls of 32 rows, one pass in
    minibatches of 1,024, clip range 0.1, gradients up to 4. The ratio in the surrogate is to the policy that acted.
    """

    learning_rate: LearningRate = 1e-4
    n_steps: int = 32
    batch_size: int | None = 1024
    n_epochs: int = 1
    advantage: Literal["gae", "monte_carlo", "n_step", "vtrace"] = "vtrace"
    gae_lambda: float = 1.0
    clip_range: Annotated[float | ScheduleConfig, Between(0)] = 0.1
    ent_coef: float | ScheduleConfig | Literal["auto"] = 0.003
    max_grad_norm: GradNorm = 4.0


PPO = Preset(PolicyGradient, PolicyGradientConfig, "Schulman et al. 2017, arXiv:1707.06347")
A2C = Preset(PolicyGradient, A2CConfig, "Mnih et al. 2016, arXiv:1602.01783")
TRPO = Preset(PolicyGradient, TRPOConfig, "Schulman et al. 2015, arXiv:1502.05477")
IMPALA = Preset(PolicyGradient, IMPALAConfig, "Espeholt et al. 2018, arXiv:1802.01561")
APPO = Preset(PolicyGradient, APPOConfig, "Petrenko et al. 2020, arXiv:2006.11751")
