"""CartPole-v1 as tensors.

Barto, Sutton and Anderson 1983 (IEEE Trans. SMC-13), with the equations, constants and limits of Gymnasium's
`CartPoleEnv`, explicit Euler.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from uniarena.envs.simulators.classic import ClassicSimulator


class TensorCartPole(ClassicSimulator):
    """Balance a pole on a cart; reward 1 for every step, the last one included.

    Observation `[4]` float32: position (m), velocity (m/s), pole angle (rad), angular velocity (rad/s).
    Action: 0 pushes left, 1 right. Attributes are those of Gymnasium's environment, so that `set_attr` finds them.

    Args:
        num_envs, device, max_episode_steps, render_mode: see `ClassicSimulator`.
        sutton_barto_reward: 0 for every step and −1 for the one in which the pole falls.
    """

    env_id = "CartPole-v1"
    limit = 500
    low, high = (-0.05,) * 4, (0.05,) * 4

    def __init__(
        self,
        num_envs: int = 1,
        device: str | torch.device = "cpu",
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        sutton_barto_reward: bool = False,
    ) -> None:
        super().__init__(num_envs, device, max_episode_steps, render_mode)
        self.gravity, self.masscart, self.masspole = 9.8, 1.0, 0.1  # m/s², kg, kg
        self.length = 0.5  # of half the pole, m
        self.force_mag, self.tau = 10.0, 0.02  # N, s
        self.theta_threshold_radians, self.x_threshold = 12 * 2 * math.pi / 360, 2.4
        high = np.array([2 * self.x_threshold, np.inf, 2 * self.theta_threshold_radians, np.inf], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Discrete(2)
        self.sutton_barto_reward = sutton_barto_reward
        self._one = torch.ones(self.num_envs, device=self.device)

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        x_dot, theta, theta_dot = self.state[:, 1], self.state[:, 2], self.state[:, 3]
        force = action.to(torch.float64).mul_(2 * self.force_mag).sub_(self.force_mag)
        total, moment = self.masspole + self.masscart, self.masspole * self.length
        sin, cos = theta.sin(), theta.cos()
        push = (force + moment * theta_dot.square() * sin) / total
        spin = (self.gravity * sin - cos * push) / (
            self.length * (4.0 / 3.0 - self.masspole * cos.square() / total)
        )
        speed = push - moment * spin * cos / total
        self.state.add_(torch.stack((x_dot, speed, theta_dot, spin), dim=1), alpha=self.tau)
        fallen = self.state[:, 2].abs() > self.theta_threshold_radians
        terminated = fallen.logical_or_(self.state[:, 0].abs() > self.x_threshold)
        return (-terminated.float() if self.sutton_barto_reward else self._one), terminated

    def _observe(self, state: Tensor) -> Tensor:
        return state.float()
