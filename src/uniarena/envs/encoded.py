"""EncodedLeaves: observation parts that are no arrays (Text, say), turned into arrays by their registered
encoders.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import Space, spaces

from uniarena.envs.spaces import encoder_for, leaf_spaces, map_space


class EncodedLeaves(gym.ObservationWrapper):
    """Applies `envs.register_encoder`'s encoders to every leaf that has one.

    Args:
        env: an environment for whose observation space `has_encoded_leaves` is true.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.inner_space = env.observation_space
        self.observation_space = map_space(_encoded, self.inner_space)

    def observation(self, observation: Any) -> Any:
        """The observation with its encoded parts."""
        return _encode(self.inner_space, observation)


def has_encoded_leaves(space: Space[Any]) -> bool:
    """Whether some leaf has an encoder."""
    return any(encoder_for(leaf) is not None for _, leaf in leaf_spaces(space))


def _encoded(leaf: Space[Any]) -> Space[Any]:
    encoder = encoder_for(leaf)
    return leaf if encoder is None else encoder.space(leaf)


def _encode(space: Space[Any], value: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _encode(child, value[key]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_encode(child, part) for child, part in zip(space.spaces, value, strict=True))
    encoder = encoder_for(space)
    return value if encoder is None else encoder.encode(space, value)
