"""Observation and reward normalisation, declared. The statistics are the agent's, which saves them.

In a wrapper list these two say *that* observations or rewards are to be normalised, and how. They change
nothing themselves: the assembly of the agent reads `env.normalization` and builds the running statistics,
which evaluation then uses without moving them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from uniarena.config import Between, ConfigError, config
from uniarena.envs.protocol import Env
from uniarena.envs.wrappers.base import EnvWrapper


class AlreadyNormalizedError(ConfigError):
    """The same normalisation was declared twice on one pipeline; values would be squashed twice."""


@config
class NormalizeObservationConfig:
    """Settings of `NormalizeObservation`."""

    clip: float = 10.0  # normalised values are clipped to ±clip
    epsilon: float = 1e-8  # added to the variance
    skip: tuple[str, ...] = ()  # float leaves that stay as they are, e.g. ["sensors.cam"]
    statistics: Literal["welford", "ema"] = "welford"  # of all rows so far, or moving averages
    decay: Annotated[float, Between(0, 1)] = 0.99  # ema: share that each update keeps
    outlier: Annotated[float, Between(1)] | None = (
        None  # numbers further from the mean count as so many deviations; null: as they are
    )


@config
class NormalizeRewardConfig:
    """Settings of `NormalizeReward`."""

    clip: float = 10.0  # scaled rewards are clipped to ±clip
    epsilon: float = 1e-8  # added to the variance of the discounted return
    gamma: float | None = None  # discount of that return; None: the learner's


class NormalizeObservation(EnvWrapper):
    """Declares that float Box leaves of observations are standardised by running mean and variance.

    `normalization["observation"]` is the declaration: the fields of the config.

    Raises:
        AlreadyNormalizedError: `env` declares it already.
    """

    Config = NormalizeObservationConfig
    where = "environment.wrappers.normalize_observation"

    def __init__(self, env: Env, cfg: NormalizeObservationConfig) -> None:
        super().__init__(env, cfg)
        _declare(self, "observation", "obs_rms")


class NormalizeReward(EnvWrapper):
    """Declares that rewards in targets are divided by the running deviation of the discounted return.

    `normalization["reward"]` is the declaration: the fields of the config that were set.

    Raises:
        AlreadyNormalizedError: `env` declares it already.
    """

    Config = NormalizeRewardConfig
    where = "environment.wrappers.normalize_reward"

    def __init__(self, env: Env, cfg: NormalizeRewardConfig) -> None:
        super().__init__(env, cfg)
        _declare(self, "reward", "return_rms")


def _declare(wrapper: EnvWrapper, name: str, statistics: str) -> None:
    """Declare once, and take the wrapper out of the path of every step.

    Args:
        statistics: the attribute by which gymnasium's own wrapper of the kind is known.
    """
    title = type(wrapper).__name__
    if name in wrapper.normalization:
        raise AlreadyNormalizedError(
            f"{title} is declared twice on {wrapper.env_id!r}: it would be applied twice",
            path=wrapper.where,
            hint="list it once",
        )
    if _has(wrapper.env, statistics):
        raise AlreadyNormalizedError(
            f"gymnasium's {title} is inside {wrapper.env_id!r} already: it would be applied twice",
            path=wrapper.where,
            hint="remove one of the two; the statistics of this one are saved with the agent",
        )
    fields: dict[str, Any] = asdict(wrapper.cfg)
    wrapper.normalization[name] = {key: value for key, value in fields.items() if value is not None}
    wrapper.reset = wrapper.env.reset  # type: ignore[method-assign]
    wrapper.step = wrapper.env.step  # type: ignore[method-assign]


def _has(env: Env, attribute: str) -> bool:
    """Whether a gymnasium wrapper of some column has the attribute; backends of other kinds have none."""
    try:
        return any(env.call("has_wrapper_attr", attribute))
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return False
