"""Deep deterministic policy gradient: a preset of the deterministic actor-critic."""

from __future__ import annotations

from typing import Annotated

from uniarena.config import Between, config
from uniarena.learners.base import Preset
from uniarena.learners.off_policy.td3 import TD3, TD3Config


@config
class DDPGConfig(TD3Config):
    """One critic, no delay, no smoothing; rates, batch and τ are TD3's.

    Lillicrap et al. 2016 (arXiv:1509.02971), section 7, has τ 0.001, 1e-4 for the policy, and batches of 64.
    """

    n_critics: Annotated[int, Between(1)] = 1
    policy_delay: Annotated[int, Between(1)] = 1
    target_update_updates: Annotated[int, Between(1)] = 1
    target_noise: Annotated[float, Between(0)] = 0.0


DDPG = Preset(TD3, DDPGConfig, "Lillicrap et al. 2016, arXiv:1509.02971")
