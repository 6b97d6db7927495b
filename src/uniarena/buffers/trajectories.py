"""What lies around a transition of a dataset: its episode, the rows after it, sequences of rows."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch

from uniarena.batch import Batch, tree_map
from uniarena.buffers.dataset import DatasetBuffer, DatasetConfig
from uniarena.config import Between, config


@config
class DatasetSequenceConfig(DatasetConfig):
    """Settings of `DatasetSequences`."""

    length: Annotated[int, Between(1)] = 20  # rows of a sequence
    burn_in: Annotated[int, Between(0)] = 0  # rows before them, of the same episode, with weight 0


class DatasetSequences(DatasetBuffer):
    """`DatasetBuffer` whose samples are sequences; every row is as likely as any other to be the first behind the
    burn-in.
    """

    Config: type = DatasetSequenceConfig
    gives_sequences: ClassVar[bool] = True

    def sample(self, generator: torch.Generator | None = None, size: int | None = None) -> Batch:
        """Sequences of one-step transitions, time first.

        Returns:
            `[burn_in + length, N]` of what single rows have, and truncated, is_first, valid (False: before the start or
            behind the end of the episode, a copy of the nearest row); `weight` is 0 there, and in the burn-in.
        """
        count, rows, cfg = size or self.spec.batch_size, self.dataset.rows, self.cfg
        anchors = torch.randint(len(self.dataset), (count,), generator=generator).numpy()
        steps = np.arange(-cfg.burn_in, cfg.length)[:, None]  # type: ignore[attr-defined]
        episode = self.dataset.episode_id[anchors]
        index = np.clip(anchors + steps, rows.starts[:-1][episode], rows.starts[1:][episode] - 1)
        flat, there = index.ravel(), index == anchors + steps
        valid = self._send(there.ravel())
        batch = self.at(flat)
        batch = batch.replace(
            truncated=self._send(rows.truncated[flat]),
            is_first=self._send(np.isin(flat, rows.starts[:-1])),
            valid=valid,
            weight=batch.weight * self._send((there & (steps >= 0)).ravel()),
        )
        shape = index.shape
        fields = {
            name: tree_map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), tree)
            for name, tree in batch.fields.items()
        }
        return Batch(shape, fields)
