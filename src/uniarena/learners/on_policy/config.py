"""Configuration of the policy-gradient family."""

from __future__ import annotations

from typing import Annotated, Literal

from uniarena.config import Between, ConfigError, config
from uniarena.ops.policy_gradient import Clip
from uniarena.optim import GradNorm, LearningRate, OptimizerConfig, PrecisionName, ScheduleConfig

POSITIVE = (
    *("n_steps", "train_batch_size", "batch_size", "n_epochs", "bootstrap_steps", "sequence_length"),
    *("dual_clip", "value_clip", "target_kl"),
)
FRACTIONS = ("gamma", "gae_lambda")
Above = Annotated[float, Between(0, above=True)]
Fraction = Annotated[float, Between(0, 1)]


@config
class PolicyGradientConfig:
    """The slots and their regularisers. The defaults are PPO's, as its widely used implementations set them.

    Schulman et al. 2017 (arXiv:1707.06347), table 3, and Huang et al. 2022, "The 37 implementation details of
    PPO".
    """

    learning_rate: LearningRate = 3e-4
    gamma: float = 0.99  # discount per environment step
    n_steps: int = 2048  # rows of every environment in one rollout
    train_batch_size: int | None = None  # environment steps gathered for one update; None: one rollout
    batch_size: int | None = 64  # rows of a minibatch; None: the whole rollout at once
    n_epochs: int = 10  # passes over a rollout
    advantage: Literal["gae", "monte_carlo", "n_step", "vtrace"] = "gae"
    gae_lambda: float = 0.95  # of gae and vtrace; 1: Monte Carlo, 0: one-step TD
    rho_bar: Above = 1.0  # vtrace and clip: truncated; largest weight of a row, as a ratio of probabilities
    c_bar: Above = 1.0  # vtrace; largest such ratio by which a correction reaches back a row
    bootstrap_steps: int = 5  # n of advantage: n_step
    normalize_advantage: bool = True  # mean 0, standard deviation 1 over the rollout
    ratio: Literal["joint", "atom"] = "joint"  # one ratio per decision, or one per action dimension
    clip: Clip = "hard"  # none, hard, dual, truncated
    # number, schedule or kl_adaptive
    clip_range: Annotated[float | ScheduleConfig, Between(0)] = 0.2
    dual_clip: float = 3.0  # clip: dual; the most that a bad action can count, in advantages
    vf_coef: Annotated[float, Between(0)] = 0.5  # weight of the value loss
    value_loss: Literal["mse", "huber"] = "mse"
    value_clip: float | None = (
        None  # furthest that a value may move in one update, in units of return; None: free
    )
    normalize_return: Literal["none", "running", "popart"] = (
        "none"  # the value learns returns in units of their moving deviation; popart: outputs stay as these move
    )
    return_decay: Fraction = 0.9  # share of the moments of returns that each rollout keeps
    ent_coef: float | ScheduleConfig | Literal["auto"] = (
        0.0  # weight of the entropy bonus; auto: target_entropy
    )
    target_entropy: float | Literal["auto"] = (
        "auto"  # ent_coef: auto; nats of the whole action; auto: half of the most that Discrete has
    )
    ent_coef_init: Above = 0.01  # ent_coef: auto; its first value
    ent_coef_bounds: tuple[float, float] = (1e-5, 1.0)  # ent_coef: auto; least and largest value
    ent_coef_learning_rate: Above = 1e-3  # ent_coef: auto; of its logarithm, one step a minibatch
    kl_coef: float | ScheduleConfig = (
        0.0  # weight of the KL to the old policy; number, schedule or kl_adaptive
    )
    target_kl: float | None = None  # stop the epochs once a minibatch's KL exceeds 1.5 × this; None: never
    on_high_kl: Literal["warn", "stop_epoch", "shrink_clip", "lower_lr"] = (
        "warn"  # once a minibatch's KL exceeds 1.5 × the clip range; stop_epoch ends the epochs of this rollout
    )
    stop_on_loss: Literal["never", "rising", "oscillating", "both"] = (
        "never"  # end the epochs of a rollout once the mean loss of an epoch rose twice, or went up and down
    )
    policy_step: Literal["gradient", "natural"] = (
        "gradient"  # natural: one step to target_kl by conjugate gradients; epochs are the value's
    )
    cg_steps: Annotated[int, Between(1)] = 15  # natural: of conjugate gradients
    cg_damping: Annotated[float, Between(0)] = 0.1  # natural: added to the Fisher matrix's diagonal
    line_search_steps: Annotated[int, Between(1)] = 10  # natural: lengths tried, each 0.8 × the one before
    max_grad_norm: GradNorm = 0.5  # longest global gradient, or {policy: …, value: …}; null: no clipping
    compile: bool = False  # compile the loss with torch.compile; on, off
    sequence_length: int = 16  # rows of the sequences that recurrent policies are trained on
    precision: PrecisionName = "fp32"  # of losses and their gradients: fp32, bf16, fp16
    optimizer: OptimizerConfig = OptimizerConfig()

    def __post_init__(self) -> None:
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(
                    f"got {value}; expected a number above 0.", path=name, hint=f"set a positive {name}."
                )
        if self.c_bar > self.rho_bar:
            raise ConfigError(
                f"got {self.c_bar:g}, more than rho_bar ({self.rho_bar:g}); corrections would reach further than "
                "values are trusted.",
                path="c_bar",
                hint="1 is usual for both.",
            )
        low, high = self.ent_coef_bounds
        if not 0.0 < low <= self.ent_coef_init <= high:
            raise ConfigError(
                f"got {[low, high]}; expected 0 < least <= ent_coef_init ({self.ent_coef_init:g}) <= largest.",
                path="ent_coef_bounds",
            )
        for name in FRACTIONS:
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(
                    f"got {value}; expected a number from 0 to 1.", path=name, hint=f"0.95 is a usual {name}."
                )
