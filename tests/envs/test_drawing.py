"""What can be drawn, told without making it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from uniarena.config import ConfigError
from uniarena.envs import drawing


class Drawn(gym.Env):
    metadata = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012


class Undrawn(gym.Env):
    """Its metadata are those of `gymnasium.Env`."""


def make(**kwargs: Any) -> gym.Env:
    return Drawn()


@pytest.mark.parametrize(
    ("env", "kwargs", "drawn"),
    [
        ("CartPole-v1", {}, True),
        ("CartPole-v1", {"render_mode": "human"}, False),
        (Drawn, {}, True),
        (f"{__name__}:Drawn", {}, True),
        (Undrawn, {}, False),
        (make, {}, False),
    ],
)
def test_an_environment_is_drawn_where_its_class_says_so(env: Any, kwargs: dict, drawn: bool) -> None:
    assert drawing.can_be_drawn(env, kwargs) is drawn


def test_gymnasiums_own_need_pygame_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "find_spec", lambda name: None)
    assert not drawing.can_be_drawn("CartPole-v1", {})
    assert drawing.can_be_drawn(Drawn, {})


def test_an_unknown_id_is_told() -> None:
    with pytest.raises(ConfigError):
        drawing.can_be_drawn("CartPool-v1", {})
