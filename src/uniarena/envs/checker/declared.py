"""What an environment declares: its spaces, and what they will mean for training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from uniarena.envs.checker.problem import Findings, Level, Problem
from uniarena.envs.checker.source import space_lines
from uniarena.envs.legacy import convert_space
from uniarena.envs.spaces import LEAVES, encoder_for, leaf_spaces

_SUPPORTED = "Box, Discrete, MultiDiscrete or MultiBinary"


def declared_space(
    env: Any, name: str, findings: Findings, attribute: str | None = None
) -> Space[Any] | None:
    """The Gymnasium space `observation_space` or `action_space`; None where there is none that could be used.

    A space of the old gym is reported and converted, so that the remaining checks can go on.
    """
    attribute = attribute or name
    line = space_lines(env, attribute)
    space = getattr(env, attribute, None)
    if space is None:
        fix = f"set self.{attribute} in __init__"
        findings.add(Problem("missing", attribute, "a gymnasium space", "None", fix, line))
        return None
    if not isinstance(space, Space):
        legacy = type(space).__module__.split(".")[0] == "gym"
        converted = _convert(space)
        kind = "legacy space" if legacy else "wrong type"
        level: Level = "error" if converted is None or not legacy else "warning"
        cls = type(space)
        got = f"the class {space.__name__}" if isinstance(space, type) else f"{cls.__module__}.{cls.__name__}"
        fix = "from gymnasium import spaces"
        findings.add(Problem(kind, attribute, "a space of gymnasium.spaces", got, fix, line, level))
        return converted
    check = _check_observation_leaf if name == "observation_space" else _check_action_leaf
    for path, leaf in leaf_spaces(space):
        key = f"{attribute}[{path!r}]" if path else attribute
        for problem in check(leaf, key, line):
            findings.add(problem)
    return space


def _check_observation_leaf(leaf: Space[Any], key: str, line: str) -> Iterator[Problem]:
    if not isinstance(leaf, LEAVES):
        if encoder_for(leaf) is None:
            fix = "encode it as an array in the environment, or register an encoder for it"
            yield Problem("unsupported space", key, _SUPPORTED, type(leaf).__name__, fix, line)
    elif leaf.dtype == np.float64:
        fix = "nothing must change: observations become float32; declare np.float32 to save the conversion"
        yield Problem("float64", key, "float32", "float64", fix, line, "note")
    elif (
        isinstance(leaf, spaces.Box)
        and leaf.dtype == np.uint8
        and len(leaf.shape) == 1
        and leaf.high.max() > 1
    ):
        fix = (
            "not taken for an image and not divided by 255: scale it in the environment, "
            "unless the network is to see 0 … 255"
        )
        yield Problem(
            "unscaled integers", key, "small floats", f"uint8 of shape {leaf.shape}", fix, line, "note"
        )


def _check_action_leaf(leaf: Space[Any], key: str, line: str) -> Iterator[Problem]:
    if not isinstance(leaf, LEAVES):
        fix = f"use {_SUPPORTED}, or a Dict or Tuple of them"
        yield Problem("unsupported space", key, _SUPPORTED, type(leaf).__name__, fix, line)
        return
    if isinstance(leaf, spaces.Box):
        loose = np.flatnonzero(~(np.isfinite(leaf.low) & np.isfinite(leaf.high)).ravel()).tolist()
        if loose:
            got = f"no bounds in dimension(s) {loose[:10]}"
            fix = (
                "nothing must change for an unsquashed Gaussian (PPO); "
                "squashed policies (SAC, TD3) and `rescale_action` need finite low and high"
            )
            yield Problem("infinite bounds", key, "finite bounds", got, fix, line, "note")
        if leaf.dtype == np.float64:
            fix = "nothing must change: the policy acts in float32 and the environment gets float64"
            yield Problem("float64", key, "float32", "float64", fix, line, "note")
    start = getattr(leaf, "start", 0)
    if np.any(start):
        fix = "nothing must change: the policy counts from 0 and the environment gets its own numbers"
        yield Problem("start", key, "start=0", f"start={start}", fix, line, "note")


def _convert(space: Any) -> Space[Any] | None:
    """A space of the old gym as one of gymnasium; None where it is not one."""
    try:
        return convert_space(space)
    except Exception:
        return None
