"""Pendulum-v1 as tensors, with the equations, constants and limits of Gymnasium's `PendulumEnv`."""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from uniarena.envs.simulators.classic import ClassicSimulator


class TensorPendulum(ClassicSimulator):
    """Swing a pendulum up and hold it; the reward is −(angle² + 0.1 · speed² + 0.001 · torque²), angle 0 upright.

    Observation `[3]` float32: cosine and sine of the angle, angular velocity (rad/s). Action `[1]`: torque in
    [−2, 2] N·m. Attributes are those of Gymnasium's environment, so that `set_attr` finds them.

    Args:
        num_envs, device, max_episode_steps, render_mode: see `ClassicSimulator`.
        g: gravity, m/s².
    """

    env_id = "Pendulum-v1"
    limit = 200
    low, high = (-math.pi, -1.0), (math.pi, 1.0)

    def __init__(
        self,
        num_envs: int = 1,
        device: str | torch.device = "cpu",
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        g: float = 10.0,
    ) -> None:
        super().__init__(num_envs, device, max_episode_steps, render_mode)
        self.g, self.m, self.l, self.dt = g, 1.0, 1.0, 0.05  # m/s², kg, m, s
        self.max_speed, self.max_torque = 8.0, 2.0
        high = np.array([1.0, 1.0, self.max_speed], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Box(-self.max_torque, self.max_torque, (1,), np.float32)
        self._never = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        angle, speed = self.state[:, 0], self.state[:, 1]
        torque = action[:, 0].clamp(
            -self.max_torque, self.max_torque
        )  # float32 where it stands alone, as there
        turned = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = turned.square() + 0.1 * speed.square() + 0.001 * torque.square()
        pull = 3 * self.g / (2 * self.l) * angle.sin() + 3.0 / (self.m * self.l**2) * torque
        speed.add_(pull, alpha=self.dt).clamp_(-self.max_speed, self.max_speed)
        angle.add_(speed, alpha=self.dt)
        return cost.neg_().float(), self._never

    def _observe(self, state: Tensor) -> Tensor:
        angle, speed = state.unbind(1)
        return torch.stack((angle.cos(), angle.sin(), speed), dim=1).float()
