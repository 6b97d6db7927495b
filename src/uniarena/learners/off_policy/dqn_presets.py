"""Named members of the DQN family: frozen defaults of the one learner."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from uniarena.config import Between, config
from uniarena.learners.base import Preset
from uniarena.learners.off_policy.dqn import DQN
from uniarena.learners.off_policy.dqn_config import AdamConfig, DQNConfig, Positive
from uniarena.optim import ScheduleConfig

_Returns = Literal["expectation", "c51", "qr", "iqn"]


@config
class C51Config(DQNConfig):
    """Bellemare et al. 2017 (arXiv:1707.06887), section 5: 51 atoms, Adam with ε = 0.01/32."""

    returns: _Returns = "c51"
    learning_rate: float | ScheduleConfig = 2.5e-4
    optimizer: AdamConfig = AdamConfig(eps=0.01 / 32)


@config
class QRDQNConfig(DQNConfig):
    """Dabney et al. 2018 (arXiv:1710.10044), section "Evaluation on Atari 2600": 200 quantiles, κ = 1."""

    returns: _Returns = "qr"
    learning_rate: float | ScheduleConfig = 5e-5
    optimizer: AdamConfig = AdamConfig(eps=0.01 / 32)


@config
class IQNConfig(DQNConfig):
    """Dabney et al. 2018 (arXiv:1806.06923), section 4: N = N' = 64, K = 32, κ = 1."""

    returns: _Returns = "iqn"
    learning_rate: float | ScheduleConfig = 5e-5
    optimizer: AdamConfig = AdamConfig(eps=0.01 / 32)


@config
class RainbowConfig(DQNConfig):
    """Six improvements of DQN together. Hessel et al. 2018 (arXiv:1710.02298), table 1.

    Double Q-learning, dueling streams, noisy layers, 51 atoms from −10 to 10, 3-step returns, prioritised replay. The
    table's periods are in frames, four to an env step: 80,000 before the first update, 32,000 between copies.
    """

    learning_rate: float | ScheduleConfig = 6.25e-5
    optimizer: AdamConfig = AdamConfig(eps=1.5e-4)
    learning_starts: Annotated[int, Between(0)] = 20_000
    target_every: ClassVar[int] = 8_000
    n_step: Positive = 3
    double: bool = True
    dueling: bool = True
    noisy: bool = True
    returns: _Returns = "c51"


_RAINBOW_PARTS: dict[str, dict[str, Any]] = {
    "explorer": {"type": "sample"},  # greedy, with the noise of the noisy layers
    "buffer": {"type": "prioritized", "alpha": 0.5},  # ω of the table; β goes from 0.4 to 1 by default
}

C51 = Preset(DQN, C51Config, "Bellemare et al. 2017, arXiv:1707.06887")
QRDQN = Preset(DQN, QRDQNConfig, "Dabney et al. 2018, arXiv:1710.10044")
IQN = Preset(DQN, IQNConfig, "Dabney et al. 2018, arXiv:1806.06923")
RAINBOW = Preset(DQN, RainbowConfig, "Hessel et al. 2018, arXiv:1710.02298", _RAINBOW_PARTS)
