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


class DatasetSequences(DatasetBuffer):
    """`DatasetBuffer` whose samples are sequences; every row is as likely as any other to be the first."""

    Config: type = DatasetSequenceConfig
    gives_sequences: ClassVar[bool] = True

    def sample(self, generator: torch.Generator | None = None, size: int | None = None) -> Batch:
        """Sequences of one-step transitions, time first.

        Returns:
            `[length, N]` of what single rows have, and truncated, is_first, valid (False: behind the end of the
            episode, a copy of its last row); `weight` is 0 there.
        """
        count, rows = size or self.spec.batch_size, self.dataset.rows
        anchors = torch.randint(len(self.dataset), (count,), generator=generator).numpy()
        steps = np.arange(self.cfg.length)[:, None]  # type: ignore[attr-defined]
        last = rows.starts[1:][self.dataset.episode_id[anchors]] - 1
        index = np.minimum(anchors + steps, last)
        flat, valid = index.ravel(), self._send((anchors + steps <= last).ravel())
        batch = self.at(flat)
        batch = batch.replace(
            truncated=self._send(rows.truncated[flat]),
            is_first=self._send(np.isin(flat, rows.starts[:-1])),
            valid=valid,
            weight=batch.weight * valid,
        )
        shape = index.shape
        fields = {
            name: tree_map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), tree)
            for name, tree in batch.fields.items()
        }
        return Batch(shape, fields)
