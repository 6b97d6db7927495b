"""Configuration of maximum-entropy learners."""

from __future__ import annotations

from typing import Annotated, Literal

from uniarena.config import Between, ConfigError, config
from uniarena.learners.off_policy.actor_critic import ActorCriticConfig
from uniarena.learners.off_policy.estimates import Estimate, Expectation, TruncatedQuantiles
from uniarena.learners.offline.conservative import ConservativeConfig
from uniarena.optim import LearningRate
from uniarena.values.ensemble import EnsembleSpec


@config
class SACConfig(ActorCriticConfig):
    """Maximum entropy: α is the price of entropy, in reward. Haarnoja et al. 2018 (arXiv:1812.05905), section 5."""

    alpha: Annotated[float, Between(0)] | Literal["auto"] = "auto"  # auto: adapted to target_entropy
    alpha_init: Annotated[float, Between(0, above=True)] = 1.0  # first value of alpha: auto
    alpha_bounds: tuple[float, float] = (1e-6, 100.0)  # least and largest value of alpha: auto
    alpha_learning_rate: LearningRate | None = None  # null: learning_rate
    target_entropy: float | Literal["auto"] = (
        "auto"  # nats, of actions scaled to [-1, 1]; auto: -dimension, or half of the most that discrete ones have
    )

    n_quantiles: Annotated[int, Between(2)] | None = None  # of each critic; null: its mean alone
    drop_quantiles: Annotated[int, Between(0)] = 0  # largest ones left out of the target, for each critic
    conservative: ConservativeConfig | None = (
        None  # keeps values of actions that the data lacks low; {}: as cql has it
    )

    def __post_init__(self) -> None:
        ActorCriticConfig.__post_init__(self)
        if self.drop_quantiles >= (self.n_quantiles or 1):
            raise ConfigError(
                f"got {self.drop_quantiles} of n_quantiles={self.n_quantiles}: none would be left.",
                path="drop_quantiles",
                hint="2 of 25 is usual.",
            )
        low, high = self.alpha_bounds
        if not 0.0 < low < high:
            raise ConfigError(f"got {[low, high]}; expected 0 < least < largest.", path="alpha_bounds")
        if not low <= self.alpha_init <= high:
            raise ConfigError(
                f"got {self.alpha_init}, outside of alpha_bounds {[low, high]}.",
                path="alpha_init",
                hint="widen alpha_bounds.",
            )

    @property
    def critics(self) -> EnsembleSpec:
        """The critics to build."""
        return EnsembleSpec(self.n_critics, self.n_quantiles or 1, self.layer_norm, self.dropout)

    def estimate(self) -> Estimate:
        """What the critics' outputs mean."""
        if self.n_quantiles is None:
            return Expectation(self)
        return TruncatedQuantiles(self, self.drop_quantiles)
