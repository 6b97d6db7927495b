"""TD3 held near the actions of the data: TD3+BC and ReBRAC, as presets of the deterministic actor-critic."""

from uniarena.config import WithDefaults
from uniarena.learners.base import Preset
from uniarena.learners.off_policy.td3 import TD3, TD3Config

# Eq. 5 with α = 2.5; rates as in the authors' code.
TD3_BC = Preset(
    TD3,
    WithDefaults(TD3Config, "TD3BCConfig", learning_rate=3e-4, q_weight=2.5, behaviour_weight=1.0),
    "Fujimoto & Gu 2021, arXiv:2106.06860",
)

# Table 1: penalties in the loss and in the targets, layer normalisation in the critics, batches of 1024, rate 1e-3; the
# policy takes the minimum of both critics. The authors choose both weights for each dataset, from 0.001 to 1.
REBRAC = Preset(
    TD3,
    WithDefaults(
        TD3Config,
        "ReBRACConfig",
        batch_size=1024,
        layer_norm=True,
        policy_reduce="min",
        q_weight=1.0,
        behaviour_weight=0.01,
        behaviour_target_weight=0.01,
    ),
    "Tarasov et al. 2023, arXiv:2305.09836",
)
