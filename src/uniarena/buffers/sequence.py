"""Sequences of consecutive rows, for recurrent networks, with rows before them to warm up the recurrent state.

Kapturowski et al. 2019 (R2D2), section 2.3: `burn_in` rows only produce a state, the `length` rows after them are
learned from. A sequence lies within one episode; what it lacks is padded with `valid=False`.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch

from uniarena.batch import Batch, tree_map
from uniarena.buffers.flags import FIRST, OK, STOP, TRUNCATED
from uniarena.buffers.gather import gather, known
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig
from uniarena.buffers.spec import BufferSpec
from uniarena.buffers.window import one_step
from uniarena.config import Between, ConfigError, config


@config
class SequenceConfig(ReplayConfig):
    """Settings of `SequenceReplay`."""

    length: Annotated[int, Between(1)] = 40  # rows learned from
    burn_in: Annotated[int, Between(0)] = 40  # rows before them that only warm up the recurrent state


class SequenceReplay(ReplayBuffer):
    """`ReplayBuffer` whose samples are sequences; every row is as likely as any other to be the first learned from.

    Args:
        cfg: an instance of `Config`.
        spec: of the run; `batch_size` counts sequences. n-step targets along a sequence are the learner's.

    Raises:
        ConfigError: with hindsight, which sequences do not have.
    """

    Config = SequenceConfig
    episodes = "begin"
    gives_sequences = True

    def __init__(self, cfg: SequenceConfig, spec: BufferSpec) -> None:
        if cfg.her is not None:
            raise ConfigError(
                "sequences cannot be relabelled in hindsight", path="agent.buffer.her", hint="leave her out"
            )
        super().__init__(cfg, spec)
        self.length, self.burn_in = cfg.length, cfg.burn_in

    def sample(self, generator: torch.Generator | None = None, size: int | None = None) -> Batch:
        """Sequences of one-step transitions, time-major.

        Returns:
            `[burn_in + length, N]` of obs, action, reward, next_obs, discount, terminated, truncated, is_first, valid
            (False: padding, a copy of the nearest real row), weight (0 for padding and burn-in), index, and the
            extra fields. Rows before the start of an episode are padding in front, those after its end behind.

        Raises:
            RuntimeError: nothing can be sampled yet.
        """
        if not self.ring.size:
            raise RuntimeError(
                "the replay buffer holds no complete transition; add rollouts before sampling."
            )
        ring = self.ring
        anchors, _, weight = self._choose(size or self.spec.batch_size, generator)
        places, valid = self._rows(anchors)
        flat = places.ravel()
        flags = ring.flags.take(flat, mode="wrap")
        result = one_step(ring, flat, flags, self._worth)
        fields: dict[str, Any] = self._fields(*gather(ring, flat, flags))
        learned = np.arange(len(places))[:, None] >= self.burn_in
        for name, array in (
            ("reward", result.reward),
            ("discount", result.discount),
            ("terminated", result.terminated),
            ("truncated", (flags & TRUNCATED) != 0),
            ("is_first", (flags & FIRST) != 0),
            ("valid", valid.ravel()),
            ("index", flat + ring.id_shift),
        ):
            fields[name] = self._send(array)
        if self.spec.successors:
            fields["known"] = self._send(known(flags))
        fields |= self._sequels(flat, flat, flags) if self.spec.asked else {}
        fields["weight"] = (weight * self._send(valid & learned)).reshape(-1)
        steps, count = places.shape
        shaped = {
            name: tree_map(lambda leaf: leaf.reshape(steps, count, *leaf.shape[1:]), tree)
            for name, tree in fields.items()
        }
        return Batch((steps, count), shaped)

    def _rows(self, anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places `[burn_in + length, N]` around the first learned rows `[N]`, and which of them are real."""
        ring = self.ring
        step = np.arange(-self.burn_in, self.length)[:, None]
        age = np.minimum(ring.age.take(anchors, mode="wrap"), (anchors - ring.first_place) // ring.columns)
        grid = anchors + np.maximum(step, -age) * ring.columns
        flags = ring.flags.take(grid, mode="wrap")
        ok = (flags & OK) != 0
        ahead = slice(self.burn_in, None)
        stop = ((flags[ahead] & STOP) != 0) | (grid[ahead] >= ring.newest_place)
        behind = np.cumsum(stop, axis=0) - stop  # ends before this row
        last = np.argmax(np.vstack((stop[:-1], np.ones_like(stop[:1]))), axis=0)
        real = np.vstack(((step[: self.burn_in] >= -age) & ok[: self.burn_in], behind == 0))
        clamp = np.minimum(step[ahead], last) * ring.columns
        places = np.vstack((grid[: self.burn_in], anchors + clamp))
        return places, real
