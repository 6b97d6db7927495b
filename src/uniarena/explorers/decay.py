"""Numbers of an explorer that move over the run: ε, temperatures, noise scales."""

from __future__ import annotations

from typing import Annotated, Literal

from uniarena.config import Between, ConfigError, config

FRACTION = 0.1


@config
class DecayConfig:
    """From `start` to `end` over a part of the run, then `end` for the rest of it.

    The part is a fraction of the run or a number of env steps, counted from the first step, warm-up included.
    """

    type: Literal["linear", "exponential"] = "linear"  # exponential: start·(end/start)^share
    start: float = 1.0
    end: float = 0.05
    fraction: Annotated[float, Between(0.0, 1.0)] | None = (
        None  # of the run; null: 0.1, unless env_steps is set
    )
    env_steps: Annotated[int, Between(0)] | None = None  # instead of a fraction

    def __post_init__(self) -> None:
        if self.fraction is not None and self.env_steps is not None:
            raise ConfigError(
                f"got {self.env_steps} env steps and {self.fraction} of the run.",
                path="env_steps",
                hint="keep one of fraction and env_steps.",
            )
        if self.type == "exponential" and not (self.start > 0.0 and self.end > 0.0):
            raise ConfigError(
                f"got {self.start} to {self.end}; an exponential never reaches 0.",
                path="end",
                hint="set an end above 0, or type: linear.",
            )

    def at(self, env_steps: int, progress: float) -> float:
        """The value at a place in the run: env steps so far, and the fraction that is done."""
        if self.env_steps is None:
            done, length = progress, FRACTION if self.fraction is None else self.fraction
        else:
            done, length = float(env_steps), float(self.env_steps)
        share = min(1.0, done / length) if length > 0.0 else 1.0
        if share == 1.0:
            return self.end
        if self.type == "exponential":
            return float(self.start * (self.end / self.start) ** share)
        return self.start + share * (self.end - self.start)


def value_at(setting: float | DecayConfig, env_steps: int, progress: float) -> float:
    """The value of a config field that is a number or moves."""
    return setting.at(env_steps, progress) if isinstance(setting, DecayConfig) else float(setting)


def ends(setting: float | DecayConfig) -> list[float]:
    """The values between which a setting moves; a number alone."""
    return [setting.start, setting.end] if isinstance(setting, DecayConfig) else [float(setting)]
