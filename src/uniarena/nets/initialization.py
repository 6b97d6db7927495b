"""Orthogonal initialisation, as on-policy methods use it.

Saxe et al. 2014 (arXiv:1312.6120). Which gains matter: Engstrom et al. 2020 (arXiv:2005.12729) found the
initialisation among the code-level choices that decide PPO's results; Andrychowicz et al. 2021
(arXiv:2006.05990) found that a last policy layer initialised about 100 times smaller than the others, so that
the first actions hardly depend on the observation, is the choice with the largest effect.
"""

from __future__ import annotations

import math

from torch import nn

HIDDEN_GAIN = math.sqrt(2.0)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


def orthogonal_(module: nn.Module, gain: float = HIDDEN_GAIN) -> None:
    """Orthogonal weights times `gain` and zero biases, in place, in every linear and convolution layer of
    `module`.
    """
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
