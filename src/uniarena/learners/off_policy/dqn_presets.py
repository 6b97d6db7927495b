"""Named members of the DQN family: frozen defaults of the one learner."""

from __future__ import annotations

from typing import Any

from uniarena.config import WithDefaults
from uniarena.learners.base import Preset
from uniarena.learners.off_policy.dqn import DQN
from uniarena.learners.off_policy.dqn_config import DQNConfig
from uniarena.optim import OptimizerConfig

_ADAM = OptimizerConfig(eps=0.01 / 32)

# Section 5: 51 atoms, Adam with ε = 0.01/32.
C51 = Preset(
    DQN,
    WithDefaults(DQNConfig, "C51Config", returns="c51", learning_rate=2.5e-4, optimizer=_ADAM),
    "Bellemare et al. 2017, arXiv:1707.06887",
)

# Section "Evaluation on Atari 2600": 200 quantiles, κ = 1.
QRDQN = Preset(
    DQN,
    WithDefaults(DQNConfig, "QRDQNConfig", returns="qr", learning_rate=5e-5, optimizer=_ADAM),
    "Dabney et al. 2018, arXiv:1710.10044",
)

# Section 4: N = N' = 64, K = 32, κ = 1.
IQN = Preset(
    DQN,
    WithDefaults(DQNConfig, "IQNConfig", returns="iqn", learning_rate=5e-5, optimizer=_ADAM),
    "Dabney et al. 2018, arXiv:1806.06923",
)

# Six improvements of DQN together, table 1: double Q-learning, dueling streams, noisy layers, 51 atoms from −10 to 10,
# 3-step returns, prioritised replay. The table's periods are in frames, four to an env step: 80,000 before the first
# update, 32,000 between copies.
_RAINBOW = WithDefaults(
    DQNConfig,
    "RainbowConfig",
    unless={"target_update_env_steps": ("target_update_updates", "tau")},
    learning_rate=6.25e-5,
    optimizer=OptimizerConfig(eps=1.5e-4),
    learning_starts=20_000,
    target_update_env_steps=8_000,
    n_step=3,
    double=True,
    dueling=True,
    noisy=True,
    returns="c51",
)
_RAINBOW_PARTS: dict[str, dict[str, Any]] = {
    # Greedy, with the noise of the noisy layers; an ε that is set explores beside them.
    "explorer": {"type": "epsilon_greedy", "epsilon": 0.0},
    "buffer": {"type": "prioritized", "alpha": 0.5},  # ω of the table; β goes from 0.4 to 1 by default
}
RAINBOW = Preset(DQN, _RAINBOW, "Hessel et al. 2018, arXiv:1710.02298", _RAINBOW_PARTS)
