"""Configuration of the policy-gradient family."""

from __future__ import annotations

from typing import Literal

from uniarena.config import ConfigError, config
from uniarena.optim import GradNorm, OptimizerConfig, ScheduleConfig

POSITIVE = (
    *("n_steps", "train_batch_size", "batch_size", "n_epochs", "bootstrap_steps", "sequence_length"),
    *("dual_clip", "value_clip", "target_kl"),
)
FRACTIONS = ("gamma", "gae_lambda")


@config
class PolicyGradientConfig:
    """The slots and their regularisers. The defaults are PPO's, as its widely used implementations set them.

    Schulman et al. 2017 (arXiv:1707.06347), table 3, and Huang et al. 2022, "The 37 implementation details of
    PPO".
    """

    learning_rate: float | ScheduleConfig = 3e-4
    gamma: float = 0.99  # discount per environment step
    n_steps: int = 2048  # rows of every environment in one rollout
    train_batch_size: int | None = None  # environment steps gathered for one update; None: one rollout
    batch_size: int | None = 64  # rows of a minibatch; None: the whole rollout at once
    n_epochs: int = 10  # passes over a rollout
    advantage: Literal["gae", "monte_carlo", "n_step"] = "gae"
    gae_lambda: float = 0.95  # 1: Monte Carlo, 0: one-step TD
    bootstrap_steps: int = 5  # n of advantage: n_step
    normalize_advantage: bool = True  # mean 0, standard deviation 1 over the rollout
    ratio: Literal["joint", "atom"] = "joint"  # one ratio per decision, or one per action dimension
    clip: Literal["none", "hard", "dual"] = "hard"
    clip_range: float | ScheduleConfig = 0.2
    dual_clip: float = 3.0  # clip: dual; the most that a bad action can count, in advantages
    vf_coef: float = 0.5  # weight of the value loss
    value_loss: Literal["mse", "huber"] = "mse"
    value_clip: float | None = (
        None  # furthest that a value may move in one update, in units of return; None: free
    )
    ent_coef: float | ScheduleConfig = 0.0  # weight of the entropy bonus
    target_kl: float | None = None  # stop the epochs once a minibatch's KL exceeds 1.5 × this; None: never
    max_grad_norm: GradNorm = 0.5  # longest global gradient, or {policy: …, value: …}; null: no clipping
    sequence_length: int = 16  # rows of the sequences that recurrent policies are trained on
    optimizer: OptimizerConfig = OptimizerConfig()

    def __post_init__(self) -> None:
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(
                    f"got {value}; expected a number above 0.", path=name, hint=f"set a positive {name}."
                )
        for name in FRACTIONS:
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(
                    f"got {value}; expected a number from 0 to 1.", path=name, hint=f"0.95 is a usual {name}."
                )
