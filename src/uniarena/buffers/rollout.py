"""On-policy buffer: gathers consecutive rollouts until one train batch is full, then hands them out once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from uniarena.batch import Batch, Rollout
from uniarena.buffers.replay import ReplayBuffer
from uniarena.config import ConfigError, config


@config
class RolloutBufferConfig:
    """When a train batch is full."""

    train_batch_size: int | None = None  # valid rows per update; None: every rollout is one train batch


class RolloutBuffer:
    """Keeps rollouts in the order in which they came; `sample` returns them joined along time and empties the buffer.

    A rollout that fills the buffer at once is handed on without a copy; one that must wait is copied, because the
    sampler writes the next one into the same memory.
    """

    Config = RolloutBufferConfig

    def __init__(self, cfg: RolloutBufferConfig) -> None:
        self.cfg = cfg
        self._parts: list[Rollout] = []
        self.size = 0

    @property
    def ready(self) -> bool:
        """Whether a train batch is full."""
        return self.size > 0 and self.size >= (self.cfg.train_batch_size or 0)

    def add(self, rollout: Rollout) -> None:
        """Append a rollout that continues the columns of the one before."""
        self.size += int(rollout.rows.valid.sum())
        self._parts.append(rollout if self.ready else rollout.clone())

    def sample(self, generator: torch.Generator | None = None) -> Rollout:
        """All rollouts gathered, joined along time; the buffer is empty afterwards.

        Raises:
            RuntimeError: nothing was added since the last call.
        """
        if not self._parts:
            raise RuntimeError("the rollout buffer is empty; add a rollout before sampling.")
        parts, self._parts, self.size = self._parts, [], 0
        device = parts[-1].rows.reward.device  # those that a checkpoint kept are on the CPU
        return Rollout.join(_alike([part.to(device) for part in parts]))

    def forget(self) -> None:
        """Drop what was gathered: what comes next does not continue it."""
        self._parts, self.size = [], 0

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [rollout_to_state(part) for part in self._parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._parts = [rollout_from_state(part) for part in state["parts"]]
        self.size = sum(int(part.rows.valid.sum()) for part in self._parts)


def _alike(parts: list[Rollout]) -> list[Rollout]:
    """The same figures in every rollout: `info` has NaN where an environment said nothing in a whole chunk."""
    infos = [part.rows.get("info", {}) for part in parts]
    names = dict.fromkeys(name for info in infos for name in info)
    if all(len(info) == len(names) for info in infos):
        return parts

    def filled(part: Rollout, info: dict[str, Tensor]) -> Rollout:
        nothing = torch.full_like(part.rows.reward, torch.nan)
        return replace(part, rows=part.rows.replace(info={name: info.get(name, nothing) for name in names}))

    return [filled(part, info) for part, info in zip(parts, infos, strict=True)]


def refuse_other_regime(kind: Any, learner_cfg: Any, learner: Any) -> None:
    """Refuse replay for a learner from rollouts, and rollouts for one from replay.

    Args:
        kind: class of the buffer; others than those that are built in are their authors' business.
        learner_cfg: the learner's config: of one from replay, it has `updates_per_env_step`.
        learner: its name, for the message.

    Raises:
        ConfigError: naming both.
    """
    replays = getattr(learner_cfg, "updates_per_env_step", None) is not None
    others = RolloutBuffer if replays else ReplayBuffer
    own = isinstance(kind, type) and (
        issubclass(kind, others) or (getattr(kind, "fixed", False) and not replays)
    )
    if own:
        given, wanted = ("whole rollouts", "replay") if replays else ("samples of replay", "whole rollouts")
        name = getattr(learner, "__name__", learner)
        raise ConfigError(
            f"{kind.__name__} gives {given}, and {name} learns from {wanted}",
            path="agent.buffer.type",
            hint="leave agent.buffer.type out: the learner brings its own"
            + ("" if replays else ", or choose a learner from replay, such as dqn or sac"),
        )


def rollout_to_state(rollout: Rollout) -> dict[str, Any]:
    """A copy of a rollout as plain data."""
    rollout = rollout.clone()
    batches = {name: getattr(rollout, name) for name in ("rows", "start", "last", "ended", "lost")}
    packed = {
        k: None if b is None else {"shape": list(b.shape), "fields": b.fields} for k, b in batches.items()
    }
    return {**packed, "has_final_obs": rollout.has_final_obs}


def rollout_from_state(state: dict[str, Any]) -> Rollout:
    """The rollout that `rollout_to_state` made plain."""

    def batch(name: str) -> Any:
        part = state[name]
        return None if part is None else Batch(part["shape"], part["fields"])

    parts = (batch("rows"), batch("start"), batch("last"), batch("ended"))
    return Rollout(*parts, state["has_final_obs"], batch("lost"))
