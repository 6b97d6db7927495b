"""Demonstrations beside own experience: a share of every sample comes from a dataset.

Half of each batch: Ball et al. 2023 (arXiv:2302.02948), section 4.1; Vecerik et al. 2017 (arXiv:1707.08817).
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Annotated, Any

import numpy as np
import torch
from gymnasium import Space, spaces

from uniarena.batch import Batch, Tree
from uniarena.buffers.dataset import DatasetBuffer, DatasetConfig, misplaced
from uniarena.buffers.mix import MixedReplay
from uniarena.buffers.spec import BufferSpec
from uniarena.buffers.trajectories import DatasetSequenceConfig, DatasetSequences
from uniarena.config import Between, config
from uniarena.data import DataError
from uniarena.optim.schedules import ScheduleConfig, make_schedule

_PATH = "agent.buffer.demonstrations.path"


@config
class DemonstrationsConfig(DatasetConfig):
    """Which data, with all keys of the section `data`, and how much of it."""

    ratio: Annotated[float | ScheduleConfig, Between(0, 1)] = 0.5  # share of every sample, or its schedule


class WithDemonstrations(MixedReplay):
    """Replay of own experience, with a share of demonstrations in every sample.

    Until there is own experience, all rows are demonstrations.

    Args:
        own: replay, which takes what is gathered.
        shown: a dataset.
        ratio: share of the demonstrations, or its schedule over the run.
    """

    def __init__(self, own: Any, shown: DatasetBuffer, ratio: float | ScheduleConfig) -> None:
        self._ratio = make_schedule(ratio, "agent.buffer.demonstrations.ratio")
        first = self._ratio(0.0)
        super().__init__([own, shown], [1.0 - first, first])
        self._moves = isinstance(ratio, ScheduleConfig) and (first, self._ratio(1.0))

    @property
    def gives_sequences(self) -> bool:
        """Whether samples are sequences."""
        return bool(self.buffers[0].gives_sequences)

    def set_progress(self, fraction: float) -> None:
        """Move the share to its place at this fraction of the run, in [0, 1]."""
        ratio = self._ratio(fraction)
        self.weights = [1.0 - ratio, ratio]
        super().set_progress(fraction)

    def recent(self, steps: int) -> Batch:
        """The newest rows of own experience, as replay gives them."""
        rows: Batch = self.buffers[0].recent(steps)
        return rows

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            ConfigError: the data is not that of before.
        """
        try:
            super().load_state_dict(state)
        except DataError as error:
            raise misplaced(error, _PATH) from error

    def describe(self) -> str:
        """One line: the share of the demonstrations, and where they come from."""
        first, last = self._moves or (self.weights[1],) * 2
        share = f"{first:.0%}" if first == last else f"{first:.0%} to {last:.0%}"
        return f"{share} of each batch are demonstrations: {self.buffers[1].describe()}"


class _Sequences(DatasetSequences):
    """Sequences of a dataset as replay gives them: where it stores states of memory, these begin at zero, and the rows
    before those learned from bring them up to date (Kapturowski et al. 2019, section 2.3, zero start state).
    """

    def __init__(self, cfg: DatasetSequenceConfig, spec: BufferSpec) -> None:
        super().__init__(
            cfg, replace(spec, extra={}, n_step=1)
        )  # n-step targets along a sequence are the learner's
        self._state = spec.extra.get("state")

    def sample(self, generator: torch.Generator | None = None, size: int | None = None) -> Batch:
        batch = super().sample(generator, size)
        if self._state is None:
            return batch
        return batch.replace(state=_zeros(self._state, batch.shape, self.spec.device))


def with_demonstrations(buffer: Any) -> Any:
    """The buffer, or where its config has demonstrations, it and them as one.

    Raises:
        ConfigError: their data cannot be read, is of other spaces, or nothing of it is left.
    """
    own: Any = getattr(buffer, "cfg", None)  # a buffer of the user's need not keep it
    cfg: DemonstrationsConfig | None = getattr(own, "demonstrations", None)
    if cfg is None:
        return buffer
    try:
        shown = _shown(cfg, own, buffer)
    except DataError as error:
        raise misplaced(error, _PATH) from error
    return WithDemonstrations(buffer, shown, cfg.ratio)


def _shown(cfg: DemonstrationsConfig, own: Any, buffer: Any) -> DatasetBuffer:
    """The data as rows or as sequences, as the buffer beside it gives them."""
    if not buffer.gives_sequences:
        return DatasetBuffer(cfg, buffer.spec)
    given = {field.name: getattr(cfg, field.name) for field in fields(DatasetConfig)}
    rows = {"length": own.length, "burn_in": own.burn_in}
    return _Sequences(DatasetSequenceConfig(**given, **rows), buffer.spec)


def _zeros(space: Space[Any], shape: tuple[int, ...], device: torch.device) -> Tree:
    if isinstance(space, spaces.Dict):
        return {key: _zeros(child, shape, device) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_zeros(child, shape, device) for child in space.spaces)
    return torch.from_numpy(np.zeros((*shape, *(space.shape or ())), np.float32)).to(device)
