"""Conservative Q-learning, as presets: of soft actor-critic, and of deep Q-learning."""

from uniarena.config import WithDefaults
from uniarena.learners.base import Preset
from uniarena.learners.off_policy.dqn import DQN
from uniarena.learners.off_policy.dqn_config import DQNConfig
from uniarena.learners.off_policy.sac import SAC
from uniarena.learners.off_policy.sac_config import SACConfig
from uniarena.learners.offline.conservative import ConservativeConfig

# Appendix F: α = 5, and the policy slower than the critics.
CQL = Preset(
    SAC,
    WithDefaults(SACConfig, "CQLConfig", policy_learning_rate=1e-4, conservative=ConservativeConfig()),
    "Kumar et al. 2020, arXiv:2006.04779",
)

# Section 6: on Atari with quantiles (`returns: qr`), α = 1 where the data is much.
DISCRETE_CQL = Preset(
    DQN, WithDefaults(DQNConfig, "DiscreteCQLConfig", conservative=1.0), "Kumar et al. 2020, arXiv:2006.04779"
)
