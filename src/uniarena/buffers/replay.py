"""Replay buffer: experience kept in a ring and sampled at random, again and again.

One order of sampling: choose rows → window (n steps) → relabel (other goals) → gather (stacks, next observations).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from uniarena.batch import Batch, Rollout, tree_map
from uniarena.buffers.demonstrations import DemonstrationsConfig
from uniarena.buffers.flags import OK, STOP, TERMINATED
from uniarena.buffers.gather import Leaves, gather, known
from uniarena.buffers.her import Goals, Hindsight, HindsightConfig
from uniarena.buffers.ring import Ring
from uniarena.buffers.sequels import ReturnsToGo, next_actions
from uniarena.buffers.spec import BufferSpec
from uniarena.buffers.window import Window, one_step, summed, windows
from uniarena.config import Between, config

ROUNDS = 32
"""Draws again of rows that cannot be sampled, before all that can are listed."""


@config
class ReplayConfig:
    """Settings of `ReplayBuffer`."""

    capacity: Annotated[int, Between(1)] = 1_000_000  # transitions kept, those of all environments together
    frame_stack: bool = True  # store stacked frames once and rebuild the stacks when sampling
    memory_map: str | None = None  # folder for files that hold the rows, instead of RAM
    her: HindsightConfig | None = None  # relabel goals in hindsight; `{}` for the defaults
    demonstrations: DemonstrationsConfig | None = None  # data that a share of each sample comes from


class ReplayBuffer:
    """Uniform replay (Lin 1992; Mnih et al. 2015), with n-step returns and hindsight as options.

    Args:
        cfg: an instance of `Config`.
        spec: of the run.

    Raises:
        ConfigError: the memory will not fit, or hindsight lacks goals or `spec.goal_reward`.
    """

    Config: type = ReplayConfig
    gives_sequences: ClassVar[bool] = False
    """Whether samples are sequences, which networks with memory learn from."""
    index_bytes: ClassVar[float] = 0.0
    """Bytes of books about a row that a subclass keeps."""
    episodes: ClassVar[Literal["begin", "whole"] | None] = None
    """What the ring must know of a row's episode."""

    def __init__(self, cfg: ReplayConfig, spec: BufferSpec) -> None:
        self.cfg, self.spec = cfg, spec
        if not cfg.frame_stack and spec.stacks:
            spec = replace(spec, stacks=())
        self.her = None if cfg.her is None else Hindsight(cfg.her, spec)
        episodes = self.episodes if self.her is None else "whole"
        self.ring = Ring(spec, cfg.capacity, cfg.memory_map, episodes, self.index_bytes)
        self._worth = np.array([spec.gamma, 0.0], np.float32)
        self._powers = spec.gamma ** np.arange(spec.n_step + 1, dtype=np.float64)
        self._send = _sender(spec.device)
        self._returns = ReturnsToGo(self.ring, spec.gamma) if "return_to_go" in spec.asked else None
        self._of_size: tuple[int, Any] = (0, None)

    @property
    def size(self) -> int:
        """Rows that can be sampled: real steps whose successor is known."""
        return self.ring.size

    @property
    def ready(self) -> bool:
        """Whether there is anything to sample."""
        return self.ring.size > 0

    def add(self, rollout: Rollout) -> None:
        """Store a rollout `[T, B]`; it is copied.

        Raises:
            ValueError: another number of columns, or hindsight for an environment that loses final observations.
        """
        if self.her is not None and not rollout.has_final_obs:
            raise ValueError(
                "hindsight needs the goals that episodes end with, but this environment loses its final observations; "
                "give them in info['final_obs'], or do not set agent.buffer.her."
            )
        self.ring.add(rollout)

    def sample(self, generator: torch.Generator | None = None, size: int | None = None) -> Batch:
        """Transitions drawn with replacement.

        Args:
            generator: source of the random numbers, on the CPU.
            size: how many, N; None: `spec.batch_size`.

        Returns:
            `[N]` of obs, action, reward (n steps summed), next_obs, discount (γⁿ, 0 where terminated), terminated,
            weight, index (for `reprioritise`), n (steps summed), and the extra fields. With `spec.successors` also
            `known [N]`, False where an end's observation was lost; or where several steps are summed `window`: obs,
            next_obs (both under the row's goal), action and the extra fields of each step, `[N, n_step, …]`, and
            `valid [N, n_step]`: it was summed, and its successor is known. Where `spec.asked` has them: `next_action`
            after the (last) step and `followed [N]`, False where the data has none; `return_to_go [N]`, the discounted
            rewards from the row to the end of its episode.

        Raises:
            RuntimeError: nothing can be sampled yet.
        """
        if not self.ring.size:
            raise RuntimeError(
                "the replay buffer holds no complete transition; add rollouts before sampling."
            )
        places, flags, weight = self._choose(size or self.spec.batch_size, generator)
        fields = self._transitions(places, flags, generator)
        fields["weight"] = weight
        return Batch._trusted((len(places),), fields)

    def recent(self, steps: int) -> Batch:
        """The newest rows in order of time, at most `steps` of every column; nothing is drawn.

        Returns:
            `[T, B]` of obs, action, next_obs, reward, terminated, ended (the episode goes no further), valid (a real
            step whose successor is known), and the extra fields.
        """
        ring = self.ring
        count = min(steps, ring.cursor - ring.oldest)
        end = ring.newest_place + ring.columns
        places = np.arange(end - count * ring.columns, end)
        flags = ring.flags.take(places, mode="wrap")
        fields = self._fields(*gather(ring, places, flags))
        fields["reward"] = self._send(ring.reward.take(places, mode="wrap"))
        for name, mark in (("terminated", TERMINATED), ("ended", STOP), ("valid", OK)):
            fields[name] = self._send((flags & mark) != 0)
        shape = (count, ring.columns)
        return Batch(
            shape, {k: tree_map(lambda x: x.reshape(*shape, *x.shape[1:]), v) for k, v in fields.items()}
        )

    def reprioritise(self, index: Any, priority: Any) -> None:
        """Uniform sampling has no priorities; this is taken so that learners need not ask."""

    def set_progress(self, fraction: float) -> None:
        """Nothing here is scheduled."""

    def state_dict(self) -> dict[str, Any]:
        """Contents and cursor; see `Ring.state_dict` for what it shares."""
        return {"ring": self.ring.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ring.load_state_dict(state["ring"])

    # -- choosing rows ---------------------------------------------------------------------------------------------
    def _choose(self, size: int, generator: torch.Generator | None) -> tuple[np.ndarray, np.ndarray, Tensor]:
        """Places `[N]`, counted from the oldest row's and not wrapped, their flags, and importance weights `[N]`."""
        ring = self.ring
        oldest = ring.oldest
        count, start = (ring.cursor - oldest) * ring.columns, oldest % ring.rows * ring.columns
        draw, drawn = self._constants(size)[0]
        draw.random_(0, count, generator=generator)
        places = drawn + start
        flags = ring.flags.take(places, mode="wrap")
        if np.count_nonzero(flags & OK) != size:
            flags = self._redraw(places, np.flatnonzero(flags & OK == 0), (count, start), generator)
        return places, flags, self._constants(size)[1]

    def _redraw(
        self,
        places: np.ndarray,
        bad: np.ndarray,
        span: tuple[int, int],
        generator: torch.Generator | None,
    ) -> np.ndarray:
        """Draw again, in place, until every row can be sampled → flags `[N]`."""
        flags, (count, start) = self.ring.flags, span
        for _ in range(ROUNDS):
            places[bad] = torch.randint(count, (len(bad),), generator=generator).numpy() + start
            bad = bad[flags.take(places[bad], mode="wrap") & OK == 0]
            if not len(bad):
                break
        else:
            good = np.flatnonzero(flags & OK)
            good = start + (good - start) % self.ring.places
            places[bad] = good[torch.randint(len(good), (len(bad),), generator=generator).numpy()]
        return flags.take(places, mode="wrap")

    def _constants(self, size: int) -> tuple[tuple[Tensor, np.ndarray], Tensor, Tensor]:
        """Memory for N draws as tensor and array, and ones `[N]`: float32 for weights, int64 for steps (nobody can
        write into them).
        """
        if self._of_size[0] != size:
            device = self.spec.device
            draw = torch.empty(size, dtype=torch.int64)
            one, step = torch.ones((), device=device), torch.ones((), dtype=torch.int64, device=device)
            self._of_size = (
                size,
                ((draw, draw.numpy()), one.expand(size), step.expand(size)),
            )
        return self._of_size[1]

    # -- the rest of the order -------------------------------------------------------------------------------------
    def _transitions(
        self, places: np.ndarray, flags: np.ndarray, generator: torch.Generator | None
    ) -> dict[str, Any]:
        """Window, relabel, gather → fields of a batch."""
        ring, n, send, goals = self.ring, self.spec.n_step, self._send, None
        if n == 1 and self.her is None:
            result, steps = one_step(ring, places, flags, self._worth), self._constants(len(places))[2]
            last_flags = flags
            obs, next_obs, more = gather(ring, places, flags)
        else:
            window = windows(ring, places, n)
            if self.her is not None:
                window, goals = self.her.relabel(ring, window, generator)
            result, steps = summed(window, self._powers), send(window.steps)
            last_flags = ring.flags.take(result.last, mode="wrap")
            obs, next_obs, more = gather(ring, places, last_flags, result.last)
        if goals is not None and self.her is not None:
            self.her.write(goals, obs, next_obs)
        fields = self._fields(obs, next_obs, more)
        if self.spec.successors:
            if n == 1 and self.her is None:
                fields["known"] = send(known(flags))
            else:
                fields["window"] = self._steps(window, goals)
        fields["reward"], fields["discount"] = send(result.reward), send(result.discount)
        fields["terminated"], fields["n"] = send(result.terminated), steps
        fields["index"] = send(places + ring.id_shift)
        if self.spec.asked:
            fields |= self._sequels(places, result.last, last_flags)
        return fields

    def _sequels(self, places: np.ndarray, ends: np.ndarray, flags: np.ndarray) -> dict[str, Any]:
        """What a learner asked to know of the rows after `places [N]`; `flags` are those of the windows' `ends [N]`."""
        found: dict[str, Any] = {}
        if "next_action" in self.spec.asked:
            leaves, followed = next_actions(self.ring, ends, flags)
            found["next_action"] = self.ring.layout.tree("action", [self._send(leaf) for leaf in leaves])
            found["followed"] = self._send(followed)
        if self._returns is not None:
            found["return_to_go"] = self._send(self._returns(places))
        return found

    def _steps(self, window: Window, goals: Goals | None) -> dict[str, Any]:
        """The steps of windows `[N, n]`, each with its own successor; behind a window's end, copies of its last."""
        count, n = window.places.shape
        valid = np.arange(n) < window.steps[:, None]
        last = np.take_along_axis(window.places, window.steps[:, None] - 1, axis=1)
        places = np.where(valid, window.places, last).ravel()
        flags = self.ring.flags.take(places, mode="wrap")
        obs, next_obs, more = gather(self.ring, places, flags)
        if goals is not None and self.her is not None:
            rows = (goals.rows[:, None] * n + np.arange(n)).ravel()
            self.her.write(Goals(rows, np.repeat(goals.desired, n, axis=0)), obs, next_obs)
        fields = {**self._fields(obs, next_obs, more), "valid": self._send(valid.ravel() & known(flags))}
        return {
            name: tree_map(lambda leaf: leaf.reshape(count, n, *leaf.shape[1:]), tree)
            for name, tree in fields.items()
        }

    def _fields(self, obs: Leaves, next_obs: Leaves, more: Leaves) -> dict[str, Any]:
        """Leaves as trees of tensors on the device."""
        layout, send = self.ring.layout, self._send
        fields: dict[str, Any] = {}
        for name, leaves in (("obs", obs), ("next_obs", next_obs), *layout.grouped(more)):
            bare = layout.bare[name]
            fields[name] = send(leaves[0]) if bare else layout.tree(name, [send(leaf) for leaf in leaves])
        return fields


def _sender(device: torch.device) -> Callable[[np.ndarray], Tensor]:
    """Array → tensor on a device."""
    if device.type == "cpu":
        return torch.from_numpy
    return lambda array: torch.from_numpy(array).to(device)
