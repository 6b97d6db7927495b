"""Configuration of the DQN family."""

from __future__ import annotations

from typing import Annotated, Literal

from uniarena.config import Between, ConfigError, config
from uniarena.optim import GradNorm, LearningRate, OptimizerConfig, PrecisionName, ScheduleConfig

TARGET_EVERY_ENV_STEPS = 1_000

Positive = Annotated[int, Between(1)]
Share = Annotated[float, Between(0, 1, above=True)]


@config
class DQNConfig:
    """The defaults are those of widely used implementations: learning rate, batch, training frequency, target
    period and one million rows of memory as in CleanRL's `dqn_atari`, gradient clipping and the last ε as in
    Stable-Baselines3.

    Mnih et al. 2015 (Nature 518:529), extended data table 1, has the same memory, batch and frequency.
    """

    learning_rate: LearningRate = 1e-4
    gamma: Annotated[float, Between(0.0, 1.0)] = 0.99  # discount per environment step
    batch_size: Positive = 32  # rows of one update
    learning_starts: Annotated[int, Between(0)] = 1_000  # env steps of random actions before the first update
    train_every_env_steps: Positive = 4  # env steps between updates
    updates_per_env_step: Annotated[float, Between(0.0, above=True)] = 0.25  # updates per env step collected
    n_step: Positive = 1  # rewards summed before bootstrapping
    double: bool = False  # the online network chooses the next action: van Hasselt et al. 2016
    dueling: bool = False  # separate streams for value and advantage: Wang et al. 2016
    noisy: bool = False  # learned noise on the weights explores: Fortunato et al. 2018; pair it with ε = 0
    noisy_sigma: Annotated[float, Between(0.0, above=True)] = 0.5  # initial noise: σ₀/√inputs
    returns: Literal["expectation", "c51", "qr", "iqn"] = "expectation"  # what is learned of the return
    v_min: float = -10.0  # c51: first atom; a bound of the discounted return
    v_max: float = 10.0  # c51: last atom
    n_atoms: Annotated[int, Between(2)] = 51  # c51
    n_quantiles: Positive | None = None  # quantiles that Q is the mean of; null: qr 200, iqn 32
    n_fractions: Positive = 64  # iqn: fractions drawn per row for predictions and for targets
    tau: Share = 1.0  # share of the way that the target network goes in one move
    target_update_updates: Positive | None = None  # updates between moves of the target network
    target_update_env_steps: Positive | None = (
        None  # or env steps between them; both null: 1000, and every update where tau is below 1
    )
    n_targets: Positive = 1  # target networks: the last states of one
    target_reduce: Literal["min", "mean"] = "mean"  # of several target networks
    target_clip: tuple[float, float] | None = None  # bounds that bootstrapped targets are cut to
    td_clip: Annotated[float, Between(0.0, above=True)] | None = (
        1.0  # TD errors beyond it count linearly (Huber); null: squared throughout
    )
    conservative: Annotated[float | ScheduleConfig, Between(0.0)] = (
        0.0  # weight of log Σ exp Q − Q(s, a), which keeps other actions low; or its schedule
    )
    max_grad_norm: GradNorm = 10.0  # longest global gradient; null: no clipping
    precision: PrecisionName = "fp32"  # of losses and their gradients: fp32, bf16, fp16
    optimizer: OptimizerConfig = OptimizerConfig()  # Adam's ε is torch's own 1e-8 where none is set

    def __post_init__(self) -> None:
        if self.target_update_updates is not None and self.target_update_env_steps is not None:
            raise ConfigError(
                f"got {self.target_update_updates} updates and {self.target_update_env_steps} env steps.",
                path="target_update_env_steps",
                hint="keep one of target_update_updates and target_update_env_steps.",
            )
        if self.n_targets > 1 and (self.noisy or self.returns != "expectation"):
            raise ConfigError(
                f"got {self.n_targets}; several target networks are reduced to one expectation, which noisy layers and "
                f"returns: {self.returns} do not give.",
                path="n_targets",
                hint="leave it at 1, or take returns: expectation without noisy layers.",
            )
        if self.target_clip is not None and not self.target_clip[0] < self.target_clip[1]:
            raise ConfigError(
                f"got {list(self.target_clip)}; expected [low, high] with low below high.", path="target_clip"
            )
        if self.returns == "c51" and not self.v_min < self.v_max:
            raise ConfigError(f"got {self.v_min}; expected less than v_max ({self.v_max}).", path="v_min")

    @property
    def target_interval(self) -> int:
        """Updates between two moves of the target network."""
        if self.target_update_updates is not None:
            return self.target_update_updates
        steps = self.target_update_env_steps
        if steps is None:
            if self.tau < 1.0:
                return 1
            steps = TARGET_EVERY_ENV_STEPS
        return max(1, round(steps * self.updates_per_env_step))
