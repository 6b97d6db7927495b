"""Tensor environments in the style of GPU simulators: torch in, torch out, thousands of columns, no
gymnasium API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor


class TensorCounter:
    """Five-tuple simulator: obs [B, 1] = count; resets itself in the same step; a new obs tensor every step.

    final: "info" -> info["final_obs"] [B, 1] each step; "dense" -> info["next_obs"]; None -> the final obs
        is lost.
    """

    def __init__(
        self,
        num_envs: int = 4,
        lengths: Sequence[int] = (1, 2, 3, 5),
        end: str = "truncation",
        final: Literal["info", "dense"] | None = None,
        last_reward: float = 1.0,
        device: str = "cpu",
    ) -> None:
        self.num_envs, self.device, self.end, self.final = num_envs, torch.device(device), end, final
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.lengths = torch.tensor(np.resize(np.asarray(lengths), num_envs), device=device)
        self.t = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.last_reward = last_reward
        self.obs_buf = torch.zeros(num_envs, 1, device=device)

    def reset(self, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        self.t.zero_()
        self.obs_buf = self.t.float()[:, None]
        return self.obs_buf, {}

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        assert action.shape == (self.num_envs, 1)
        self.t += 1
        true_next = self.t.float()[:, None]
        done = self.t >= self.lengths
        reward = torch.where(done, self.last_reward, 1.0)
        self.t[done] = 0
        self.obs_buf = self.t.float()[:, None]
        info = {"info": {"final_obs": true_next}, "dense": {"next_obs": true_next}, None: {}}[self.final]
        none = torch.zeros_like(done)
        flags = (done, none) if self.end == "termination" else (none, done)
        self.info, self.reward_buf = info, reward
        return self.obs_buf, reward, *flags, info

    def state_dict(self) -> dict[str, Any]:
        return {"t": self.t.clone(), "obs": self.obs_buf.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.t.copy_(state["t"])
        self.obs_buf = state["obs"].clone()


class IsaacCounter(TensorCounter):
    """The four-tuple form: step -> (obs dict, reward, dones, extras), time-outs in extras["time_outs"]."""

    def reset(self, seed: int | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:  # type: ignore[override]
        obs, info = super().reset(seed)
        return {"policy": obs}, info

    def step(self, action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, dict[str, Any]]:  # type: ignore[override]
        obs, reward, terminated, truncated, info = super().step(action)
        return {"policy": obs}, reward, terminated | truncated, {**info, "time_outs": truncated}
