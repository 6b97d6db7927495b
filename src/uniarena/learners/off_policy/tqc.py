"""Truncated quantile critics: soft actor-critic whose critics give quantiles of the return, as a preset."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from uniarena.config import Between, ConfigError, config
from uniarena.learners.base import Preset
from uniarena.learners.off_policy.estimates import Estimate, TruncatedQuantiles
from uniarena.learners.off_policy.sac import SAC
from uniarena.learners.off_policy.temperature import SACConfig
from uniarena.values.ensemble import EnsembleSpec


@config
class TQCConfig(SACConfig):
    """Kuznetsov et al. 2020 (arXiv:2005.04269), table 3, with two critics of 256×256 as in SB3-contrib, where the paper
    has five of 512×512×512.
    """

    policy_reduce: Literal["min", "mean", "first"] = "mean"
    n_quantiles: Annotated[int, Between(1)] = 25  # of each critic
    drop_quantiles: Annotated[int, Between(0)] = 2  # largest ones left out of the target, for each critic

    def __post_init__(self) -> None:
        SACConfig.__post_init__(self)
        if self.drop_quantiles >= self.n_quantiles:
            raise ConfigError(
                f"got {self.drop_quantiles} of {self.n_quantiles}: none would be left.",
                path="drop_quantiles",
                hint="2 of 25 is usual.",
            )

    @property
    def critics(self) -> EnsembleSpec:
        """The critics to build."""
        return replace(super().critics, outputs=self.n_quantiles)

    def estimate(self) -> Estimate:
        """What the critics' outputs mean."""
        return TruncatedQuantiles(self, self.drop_quantiles)


TQC = Preset(SAC, TQCConfig, "Kuznetsov et al. 2020, arXiv:2005.04269")
