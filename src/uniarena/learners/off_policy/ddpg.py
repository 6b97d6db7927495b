"""Deep deterministic policy gradient: a preset of the deterministic actor-critic."""

from uniarena.config import WithDefaults
from uniarena.learners.base import Preset
from uniarena.learners.off_policy.td3 import TD3, TD3Config

# One critic, no delay, no smoothing; rates, batch and τ are TD3's. The paper, section 7, has τ 0.001, 1e-4 for the
# policy, and batches of 64.
DDPG = Preset(
    TD3,
    WithDefaults(TD3Config, "DDPGConfig", n_critics=1, policy_delay=1, target_noise=0.0),
    "Lillicrap et al. 2016, arXiv:1509.02971",
)
