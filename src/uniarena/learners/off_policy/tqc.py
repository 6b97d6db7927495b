"""Truncated quantile critics: soft actor-critic whose critics give quantiles of the return, as a preset."""

from uniarena.config import WithDefaults
from uniarena.learners.base import Preset
from uniarena.learners.off_policy.sac import SAC
from uniarena.learners.off_policy.sac_config import SACConfig

# Table 3, with two critics of 256×256 as in SB3-contrib, where the paper has five of 512×512×512.
TQC = Preset(
    SAC,
    WithDefaults(SACConfig, "TQCConfig", n_quantiles=25, drop_quantiles=2, policy_reduce="mean"),
    "Kuznetsov et al. 2020, arXiv:2005.04269",
)
