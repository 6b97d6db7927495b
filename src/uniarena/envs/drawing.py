"""Whether an environment can be drawn, told from its class without making one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from gymnasium.envs.registration import load_env_creator

from uniarena.envs import ids

_BY_PYGAME = ("classic_control", "box2d", "toy_text")
"""Gymnasium's modules whose environments are drawn by pygame."""


def can_be_drawn(env: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether it surely gives pictures; tensor forms are drawn as what they are forms of.

    Args:
        env: an id that can be resolved, a class, or a function that makes one (of which nothing is known).
        kwargs: what it is made with.
    """
    if kwargs.get("render_mode", "rgb_array") != "rgb_array":
        return False
    maker = env
    if isinstance(env, str):
        known = ids.resolve(env)
        entry = known.spec.entry_point if known.spec is not None else known.make
        maker = load_env_creator(entry) if isinstance(entry, str) else entry
    if isinstance(maker, functools.partial):
        maker = maker.func
    metadata = getattr(maker, "metadata", None) or {}
    if "rgb_array" not in (metadata.get("render_modes") or ()):
        return False
    places = str(getattr(maker, "__module__", "")).split(".")
    by_pygame = places[0] == "gymnasium" and any(place in places for place in _BY_PYGAME)
    return not by_pygame or find_spec("pygame") is not None
