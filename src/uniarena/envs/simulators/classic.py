"""What the tensor forms of classic control have in common: B instances in a few tensors, stepped and reset in place.

Nothing leaves the device and nothing waits for it: there is no `.item()`, no `if tensor.any()`, no index by a mask.
Dynamics are computed in float64, as Gymnasium's are, and given as float32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from uniarena.envs.device import usable


class ClassicSimulator(ABC):
    """B instances of one task, for `TensorEnvs`.

    A subclass states its spaces, its limits and its dynamics. What `step` returns is overwritten by the next one.

    Args:
        num_envs: B.
        device: where every tensor lives.
        max_episode_steps: an episode that lasts so long is truncated; None: the id's own limit.
        render_mode: `rgb_array` draws the first instance, by Gymnasium's own painter.

    Attributes:
        state: `[B, W]` float64, of each instance.
        steps: `[B]` int64, of each episode so far.
        generator: of the states that episodes begin with.
    """

    env_id: ClassVar[str]
    limit: ClassVar[int]
    """Steps after which the id's episodes are truncated."""
    low: ClassVar[tuple[float, ...]]
    high: ClassVar[tuple[float, ...]]
    """Bounds of the uniform distribution `[W]` that states begin with."""
    observation_space: Space[Any]
    action_space: Space[Any]
    has_final_obs = True

    def __init__(
        self,
        num_envs: int = 1,
        device: str | torch.device = "cpu",
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.num_envs, self.device = int(num_envs), usable(device)
        self.max_episode_steps = self.limit if max_episode_steps is None else int(max_episode_steps)
        self.render_mode = render_mode
        self.generator = torch.Generator(self.device)
        self._low = torch.tensor(self.low, dtype=torch.float64, device=self.device)
        self._width = torch.tensor(self.high, dtype=torch.float64, device=self.device) - self._low
        self.state = torch.zeros(self.num_envs, len(self.low), dtype=torch.float64, device=self.device)
        self.steps = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._painter: Any = None

    def reset(self, seed: int | None = None, mask: Tensor | None = None) -> Tensor:
        """Begin episodes in all instances, or in those of `mask` `[B]` bool → observations `[B, …]` of all."""
        if seed is not None:
            self.generator.manual_seed(seed)
        if mask is None:
            self.state.copy_(self._fresh())
            self.steps.zero_()
        else:
            self._restart(mask)
        return self._observe(self.state)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """One time step of all instances; `info["next_obs"]` are the true successors, before the resets."""
        reward, terminated = self._advance(action)
        self.steps += 1
        truncated = self.steps >= self.max_episode_steps
        successors = self._observe(self.state)
        self._restart(terminated | truncated)
        return self._observe(self.state), reward, terminated, truncated, {"next_obs": successors}

    def state_dict(self) -> dict[str, Any]:
        """All that the future depends on."""
        own = {"state": self.state, "steps": self.steps, "generator": self.generator.get_state()}
        return {name: value.clone() for name, value in own.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        self.state.copy_(state["state"])
        self.steps.copy_(state["steps"])
        self.generator.set_state(state["generator"])

    def render(self) -> np.ndarray | None:
        """The first instance as Gymnasium draws it, `[H, W, 3]` uint8; None unless `render_mode` is `rgb_array`."""
        if self.render_mode != "rgb_array":
            return None
        if self._painter is None:
            self._painter = gym.make(self.env_id, render_mode="rgb_array", disable_env_checker=True).unwrapped
            self._painter.reset()
        self._painter.state = self.state[0].cpu().numpy()
        picture: np.ndarray = self._painter.render()
        return picture

    def close(self) -> None:
        """Close the painter, where there is one."""
        if self._painter is not None:
            self._painter.close()

    def _fresh(self) -> Tensor:
        """States to begin with for every instance, `[B, W]`: all draw, however few begin, so that nothing waits."""
        shape, device = self.state.shape, self.device
        drawn = torch.rand(shape, generator=self.generator, dtype=torch.float64, device=device)
        return drawn.mul_(self._width).add_(self._low)

    def _restart(self, mask: Tensor) -> None:
        torch.where(mask[:, None], self._fresh(), self.state, out=self.state)
        self.steps.masked_fill_(mask, 0)

    @abstractmethod
    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Move `state` by one time step, in place → reward `[B]` float32, terminated `[B]` bool."""

    @abstractmethod
    def _observe(self, state: Tensor) -> Tensor:
        """Observations `[B, …]` float32, in memory of their own."""
