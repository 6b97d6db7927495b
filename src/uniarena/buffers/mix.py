"""Samples mixed from several buffers in fixed parts: demonstrations and own experience, say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from uniarena.batch import Batch, Rollout


class MixedReplay:
    """Several replay buffers as one. Made by `mix`.

    Args:
        buffers: replay buffers over the same spaces.
        weights: their parts of a sample, from 0 up; they need not sum to 1.
        into: which buffer `add` stores in; the others stay as they are.

    Raises:
        ValueError: weights that are no parts, or none for each buffer.
    """

    def __init__(self, buffers: Sequence[Any], weights: Sequence[float], into: int = 0) -> None:
        if len(buffers) != len(weights) or not buffers:
            raise ValueError(
                f"mix was given {len(buffers)} buffers and {len(weights)} weights; give one for each."
            )
        if any(not weight >= 0 for weight in weights) or not 0 < sum(weights) < float("inf"):
            raise ValueError(
                f"mix was given the weights {list(weights)}; expected numbers from 0 up, not all 0."
            )
        self.buffers, self.weights, self.into = list(buffers), [float(w) for w in weights], into
        self.spec = self.buffers[into].spec

    @property
    def size(self) -> int:
        return sum(int(buffer.size) for buffer in self.buffers)

    @property
    def ready(self) -> bool:
        """Whether a buffer that takes part has something to sample."""
        return any(buffer.ready for buffer, weight in zip(self.buffers, self.weights, strict=True) if weight)

    def add(self, rollout: Rollout) -> None:
        self.buffers[self.into].add(rollout)

    def sample(self, generator: torch.Generator | None = None, size: int | None = None) -> Batch:
        """N transitions, the parts of the buffers one after the other; the part of an empty buffer goes to the others.

        Returns:
            the fields that all samples share, and `source` int64, which buffer a row is from; `[N]`, or of sequences
            `[T, N]`.

        Raises:
            RuntimeError: there is nothing to sample.
        """
        parts, count = [], len(self.buffers)
        for source, rows in enumerate(self._parts(size or self.spec.batch_size)):
            if rows:
                batch = self.buffers[source].sample(generator, rows)
                mark = torch.full_like(batch["index"], source)
                parts.append(batch.replace(index=batch["index"] * count + source, source=mark))
        shared = [name for name in parts[0] if all(name in part for part in parts)]
        along = len(parts[0].shape) - 1  # of sequences [T, N] the rows lie side by side
        return Batch.cat([part.select(*shared) for part in parts], along)

    def _parts(self, size: int) -> list[int]:
        """How many rows come from each buffer; the largest remainders get what is left."""
        weights = [w if b.ready else 0.0 for b, w in zip(self.buffers, self.weights, strict=True)]
        total = sum(weights)
        if not total:
            raise RuntimeError(
                "none of the mixed buffers has anything to sample; add rollouts before sampling."
            )
        exact = [size * weight / total for weight in weights]
        rows = [int(part) for part in exact]
        order = sorted(range(len(rows)), key=lambda k: rows[k] - exact[k])
        for k in order[: size - sum(rows)]:
            rows[k] += 1
        return rows

    def reprioritise(self, index: Any, priority: Any) -> None:
        """Hand priorities `[N]` of a sample back to the buffers that its rows came from."""
        index, priority = torch.as_tensor(index), torch.as_tensor(priority)
        for source, buffer in enumerate(self.buffers):
            own = index % len(self.buffers) == source
            if own.any():
                buffer.reprioritise(index[own] // len(self.buffers), priority[own])

    def set_progress(self, fraction: float) -> None:
        for buffer in self.buffers:
            buffer.set_progress(fraction)

    def state_dict(self) -> dict[str, Any]:
        return {"buffers": [buffer.state_dict() for buffer in self.buffers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for buffer, saved in zip(self.buffers, state["buffers"], strict=True):
            buffer.load_state_dict(saved)


def mix(buffers: Sequence[Any], weights: Sequence[float], into: int = 0) -> MixedReplay:
    """One buffer that samples from several in the parts `weights`; new experience goes to `buffers[into]`."""
    return MixedReplay(buffers, weights, into)
