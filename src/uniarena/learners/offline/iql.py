"""Implicit Q-learning, and advantage-weighted actor-critic, as presets of advantage-weighted cloning."""

from uniarena.config import WithDefaults
from uniarena.learners.base import Preset
from uniarena.learners.offline.weighted import Weighted, WeightedConfig

# Appendix B: β = 3, τ = 0.7 on locomotion; 10 and 0.9 in mazes.
IQL = Preset(Weighted, WithDefaults(WeightedConfig, "IQLConfig"), "Kostrikov et al. 2021, arXiv:2110.06169")

# λ = 1, as the authors have it on locomotion.
AWAC = Preset(
    Weighted,
    WithDefaults(WeightedConfig, "AWACConfig", baseline="policy", advantage_scale=1.0),
    "Nair et al. 2020, arXiv:2006.09359",
)
