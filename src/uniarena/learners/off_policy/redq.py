"""Soft actor-critic with many updates for every env step: REDQ and DroQ, as presets."""

from __future__ import annotations

from typing import Annotated, Literal

from uniarena.config import Between, config
from uniarena.learners.base import Preset
from uniarena.learners.off_policy.sac import SAC
from uniarena.learners.off_policy.temperature import SACConfig


@config
class REDQConfig(SACConfig):
    """Ten critics, targets of a random two, and for every env step 20 updates of the critics and one of the policy.

    Chen et al. 2021 (arXiv:2101.05982), algorithm 1 and its experiments.
    """

    n_critics: Annotated[int, Between(1)] = 10
    subset_size: Annotated[int, Between(1)] | None = 2
    policy_reduce: Literal["min", "mean", "first"] = "mean"
    updates_per_env_step: Annotated[float, Between(0)] = 20.0
    policy_delay: Annotated[int, Between(1)] = 20


@config
class DroQConfig(SACConfig):
    """Two critics with dropout and layer normalisation, updated as often.

    Hiraoka et al. 2022 (arXiv:2110.02034), algorithm 2; they tune the share of dropout for each environment.
    """

    dropout: float = 0.01
    layer_norm: bool = True
    policy_reduce: Literal["min", "mean", "first"] = "mean"
    updates_per_env_step: Annotated[float, Between(0)] = 20.0
    policy_delay: Annotated[int, Between(1)] = 20


REDQ = Preset(SAC, REDQConfig, "Chen et al. 2021, arXiv:2101.05982")
DROQ = Preset(SAC, DroQConfig, "Hiraoka et al. 2022, arXiv:2110.02034")
