"""Replay buffer: experience kept in a ring and sampled at random, again and again.

One order of sampling: choose rows → window (n steps) → relabel (other goals) → gather (stacks, next observations).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from uniarena.batch import Batch, Rollout
from uniarena.buffers.flags import OK
from uniarena.buffers.gather import gather
from uniarena.buffers.her import Hindsight, HindsightConfig
from uniarena.buffers.ring import Ring
from uniarena.buffers.spec import BufferSpec
from uniarena.buffers.window import one_step, summed, windows
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


class ReplayBuffer:
    """Uniform replay (Lin 1992; Mnih et al. 2015), with n-step returns and hindsight as options.

    Args:
        cfg: an instance of `Config`.
        spec: of the run.

    Raises:
        ConfigError: the memory will not fit, or hindsight lacks goals or `spec.goal_reward`.
    """

    Config: type = ReplayConfig
    index_bytes = 0.0
    """Bytes of books about a row that a subclass keeps."""

    def __init__(self, cfg: ReplayConfig, spec: BufferSpec) -> None:
        self.cfg, self.spec = cfg, spec
        if not cfg.frame_stack and spec.stacks:
            spec = replace(spec, stacks=())
        self.her = None if cfg.her is None else Hindsight(cfg.her, spec)
        self.ring = Ring(spec, cfg.capacity, cfg.memory_map, self.her is not None, self.index_bytes)
        self._worth = np.array([spec.gamma, 0.0], np.float32)
        self._one = torch.ones((), device=spec.device)
        self._single = torch.ones((), dtype=torch.int64, device=spec.device)
        self._draw = torch.empty(spec.batch_size, dtype=torch.int64)

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
            weight, index (for `reprioritise`), n (steps summed), and the extra fields.

        Raises:
            RuntimeError: nothing can be sampled yet.
        """
        if not self.ring.size:
            raise RuntimeError(
                "the replay buffer holds no complete transition; add rollouts before sampling."
            )
        places, weight = self._choose(size or self.spec.batch_size, generator)
        return self._transitions(places, weight, generator)

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
    def _choose(self, size: int, generator: torch.Generator | None) -> tuple[np.ndarray, Tensor]:
        """Places `[N]`, counted from the oldest row's and not wrapped, and importance weights `[N]`."""
        ring = self.ring
        if len(self._draw) != size:
            self._draw = torch.empty(size, dtype=torch.int64)
        self._draw.random_(0, ring.end_id - ring.first_id, generator=generator)
        places = self._draw.numpy() + ring.first_place
        ok = ring.flags.take(places, mode="wrap") & OK
        if np.count_nonzero(ok) != size:
            self._redraw(places, np.flatnonzero(ok == 0), generator)
        return places, self._one.expand(size)

    def _redraw(self, places: np.ndarray, bad: np.ndarray, generator: torch.Generator | None) -> None:
        """Draw again, in place, until every row can be sampled."""
        ring = self.ring
        for _ in range(ROUNDS):
            new = torch.randint(ring.end_id - ring.first_id, (len(bad),), generator=generator).numpy()
            places[bad] = new + ring.first_place
            bad = bad[ring.flags.take(places[bad], mode="wrap") & OK == 0]
            if not len(bad):
                return
        good = np.flatnonzero(ring.flags & OK)
        good = ring.first_place + (good - ring.first_place) % ring.places
        places[bad] = good[torch.randint(len(good), (len(bad),), generator=generator).numpy()]

    # -- the rest of the order -------------------------------------------------------------------------------------
    def _transitions(self, places: np.ndarray, weight: Tensor, generator: torch.Generator | None) -> Batch:
        """Window, relabel, gather."""
        ring, n, goals = self.ring, self.spec.n_step, None
        if n == 1 and self.her is None:
            result, steps = one_step(ring, places, self._worth), None
        else:
            window = windows(ring, places, n)
            if self.her is not None:
                window, goals = self.her.relabel(ring, window, generator)
            result, steps = summed(window, self.spec.gamma), window.steps
        obs, next_obs, extra = gather(ring, places, None if steps is None else result.last)
        if goals is not None and self.her is not None:
            self.her.write(goals, obs, next_obs)
        fields = self._fields(obs, next_obs, extra)
        send = self._send
        fields["reward"], fields["discount"] = send(result.reward), send(result.discount)
        fields["terminated"], fields["weight"] = send(result.terminated), weight
        fields["index"] = send(places + (ring.first_id - ring.first_place))
        fields["n"] = self._single.expand(len(places)) if steps is None else send(steps)
        return Batch._trusted((len(places),), fields)

    def _fields(
        self, obs: list[np.ndarray], next_obs: list[np.ndarray], extra: list[np.ndarray]
    ) -> dict[str, Any]:
        """Leaves as trees of tensors on the device."""
        layout, send = self.ring.layout, self._send
        fields = {
            "obs": layout.tree("obs", [send(leaf) for leaf in obs]),
            "next_obs": layout.tree("obs", [send(leaf) for leaf in next_obs]),
        }
        start = 0
        for name in layout.fields:
            count = len(layout.leaves[name])
            fields[name] = layout.tree(name, [send(leaf) for leaf in extra[start : start + count]])
            start += count
        return fields

    def _send(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.spec.device.type == "cpu" else tensor.to(self.spec.device)
