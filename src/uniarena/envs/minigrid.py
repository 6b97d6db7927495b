"""MiniGrid's mission: a text that is the same in every episode of most tasks, and an instruction in the
others.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import spaces

from uniarena.envs.notices import notice
from uniarena.envs.spaces import keep_order

_MISSION = "mission"


class WithoutMission(gym.ObservationWrapper):
    """The observation without its mission."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Dict)
        rest = {key: space for key, space in env.observation_space.spaces.items() if key != _MISSION}
        self.observation_space = keep_order(rest)

    def observation(self, observation: Any) -> Any:
        """All but the mission."""
        return {key: value for key, value in observation.items() if key != _MISSION}


class TextMission(gym.Wrapper):
    """States the mission as plain `Text`, so that a registered tokeniser applies to it."""

    def __init__(self, env: gym.Env, max_length: int = 256) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Dict)
        letters = "".join(chr(code) for code in range(32, 127))
        inner = {
            **env.observation_space.spaces,
            _MISSION: spaces.Text(max_length, min_length=0, charset=letters),
        }
        self.observation_space = keep_order(inner)


def without_fixed_mission(env: gym.Env, env_id: str) -> gym.Env:
    """Leave out a mission that never changes; an instruction stays, as `Text`, for a tokeniser."""
    space = env.observation_space
    mission = space.spaces.get(_MISSION) if isinstance(space, spaces.Dict) else None
    if mission is None:
        return env
    if env_id.startswith("BabyAI-") or getattr(mission, "ordered_placeholders", None):
        return TextMission(env)
    notice(f"{env_id}: the mission, the same text in every episode, is left out of the observation")
    return WithoutMission(env)
