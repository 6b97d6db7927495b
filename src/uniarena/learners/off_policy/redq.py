"""Soft actor-critic with many updates for every env step: REDQ and DroQ, as presets."""

from uniarena.config import WithDefaults
from uniarena.learners.base import Preset
from uniarena.learners.off_policy.sac import SAC
from uniarena.learners.off_policy.sac_config import SACConfig

# Ten critics, targets of a random two, and for every env step 20 updates of the critics and one of the policy:
# algorithm 1 and its experiments.
REDQ = Preset(
    SAC,
    WithDefaults(
        SACConfig,
        "REDQConfig",
        n_critics=10,
        subset_size=2,
        policy_reduce="mean",
        updates_per_env_step=20.0,
        policy_delay=20,
    ),
    "Chen et al. 2021, arXiv:2101.05982",
)

# Two critics with dropout and layer normalisation, updated as often: algorithm 2. The authors tune the share of
# dropout for each environment.
DROQ = Preset(
    SAC,
    WithDefaults(
        SACConfig,
        "DroQConfig",
        dropout=0.01,
        layer_norm=True,
        policy_reduce="mean",
        updates_per_env_step=20.0,
        policy_delay=20,
    ),
    "Hiraoka et al. 2022, arXiv:2110.02034",
)
