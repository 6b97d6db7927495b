"""Cart-pole as a GPU simulator would do it: thousands of instances in a few tensors, stepped in place.

This file is also the answer to "how do I plug in my own physics engine?". UniArena asks for

- `num_envs`, `device`, and `observation_space` and `action_space` of one instance;
- `reset(seed=None, mask=None) -> (obs, info)`; `mask` `[B]` bool: only these instances;
- `step(action) -> (obs, reward, terminated, truncated, info)`, all `[B, …]` tensors on `device`; instances
  that end are reset at once, and `info["next_obs"]` holds the observations before that reset: the true ends
  of their episodes;
- `state_dict()` and `load_state_dict(state)`, if a resumed run is to go on bit for bit.

Nothing leaves the device and nothing waits for it: there is no `.item()`, no `if tensor.any()`.

Run it:  python examples/tensor_cartpole.py
Physics and limits: Barto, Sutton and Anderson 1983, as in Gymnasium's CartPole-v1.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from uniarena import Agent, Trainer, make_env
from uniarena.trainer.callbacks import Evaluate

GRAVITY = 9.8  # m/s²
POLE_MASS, TOTAL_MASS = 0.1, 1.1  # kg
HALF_LENGTH = 0.5  # m
FORCE = 10.0  # N
TIME_STEP = 0.02  # s
X_LIMIT = 2.4  # m
ANGLE_LIMIT = 12 * 2 * np.pi / 360  # rad


class TensorCartPole:
    """Balance a pole on a cart; reward 1 for every step.

    Observation `[4]` float32: position (m), velocity (m/s), pole angle (rad), angular velocity (rad/s).
    Action: 0 pushes left, 1 right.

    Args:
        num_envs: instances.
        device: where all tensors live.
        max_episode_steps: an episode that lasts so long is truncated.
    """

    def __init__(self, num_envs: int = 4096, device: str = "cpu", max_episode_steps: int = 500) -> None:
        high = np.array([2 * X_LIMIT, np.inf, 2 * ANGLE_LIMIT, np.inf], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Discrete(2)
        self.num_envs, self.device = num_envs, torch.device(device)
        self.max_episode_steps = max_episode_steps
        self.generator = torch.Generator(self.device)
        self.state = torch.zeros(
            num_envs, 4, device=self.device
        )  # what step() returns: changed in place, never replaced
        self.next_state = torch.zeros_like(self.state)
        self.steps = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self.reward = torch.ones(num_envs, device=self.device)

    def reset(self, seed: int | None = None, mask: Tensor | None = None) -> tuple[Tensor, dict[str, Any]]:
        """Begin episodes in all instances, or in those of `mask` `[B]` bool."""
        if seed is not None:
            self.generator.manual_seed(seed)
        if mask is None:
            mask = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self._restart(mask)
        return self.state, {}

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """One time step; `action` `[B]` int64."""
        self._integrate(action.to(self.state.dtype).mul(2 * FORCE).sub_(FORCE))
        self.steps += 1
        position, angle = self.state[:, 0].abs(), self.state[:, 2].abs()
        terminated = (position > X_LIMIT) | (angle > ANGLE_LIMIT)
        truncated = (self.steps >= self.max_episode_steps) & ~terminated
        self.next_state.copy_(self.state)  # before the reset: the true successor of every row
        self._restart(terminated | truncated)
        return self.state, self.reward, terminated, truncated, {"next_obs": self.next_state}

    def state_dict(self) -> dict[str, Any]:
        """All that the future depends on."""
        return {
            "state": self.state.clone(),
            "steps": self.steps.clone(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        self.state.copy_(state["state"])
        self.steps.copy_(state["steps"])
        self.generator.set_state(state["generator"])

    def _integrate(self, force: Tensor) -> None:
        """Explicit Euler on `state`, in place; `force` `[B]` in N."""
        _, velocity, angle, spin = self.state.unbind(1)
        sin, cos = angle.sin(), angle.cos()
        push = (force + POLE_MASS * HALF_LENGTH * spin.square() * sin) / TOTAL_MASS
        spin_rate = (GRAVITY * sin - cos * push) / (
            HALF_LENGTH * (4 / 3 - POLE_MASS * cos.square() / TOTAL_MASS)
        )
        acceleration = push - POLE_MASS * HALF_LENGTH * spin_rate * cos / TOTAL_MASS
        self.state.add_(torch.stack((velocity, acceleration, spin, spin_rate), dim=1), alpha=TIME_STEP)

    def _restart(self, mask: Tensor) -> None:
        """Small random states for the instances in `mask`; all draw, however few end."""
        fresh = (
            torch.rand(self.num_envs, 4, generator=self.generator, device=self.device).mul_(0.1).sub_(0.05)
        )
        torch.where(mask[:, None], fresh, self.state, out=self.state)
        self.steps.masked_fill_(mask, 0)


def make(num_envs: int = 4096, device: str = "cpu", max_episode_steps: int = 500) -> TensorCartPole:
    """For configs: `environment: {id: "examples.tensor_cartpole:make", num_envs: 4096}`."""
    return TensorCartPole(num_envs, device, max_episode_steps)


def main(num_envs: int = 1024, env_steps: int = 300_000) -> float:
    """Show that nothing is copied, then train PPO; prints and returns the evaluated return."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    simulator = make(num_envs, device)
    env = make_env(simulator)
    obs, step = env.reset(seed=0), env.step(torch.zeros(num_envs, dtype=torch.int64, device=device))
    same = [given.data_ptr() == simulator.state.data_ptr() for given in (obs, step.obs)]
    same.append(step.next_obs.data_ptr() == simulator.next_state.data_ptr())
    print(f"observations are the simulator's own memory, not a copy of it: {all(same)}")

    learner = {"type": "ppo", "n_steps": 32, "batch_size": 4096, "n_epochs": 4, "learning_rate": 3e-3}
    agent = Agent.assemble(env, {**learner, "gamma": 0.98, "gae_lambda": 0.9}, device=device)
    evaluate = Evaluate(n_episodes=256, num_envs=256)
    trainer = Trainer(
        agent, env, callbacks=[evaluate], env_factory=lambda num_envs, **_: make_env(make(num_envs, device))
    )
    begin = time.perf_counter()
    trainer.fit(env_steps)
    seconds = time.perf_counter() - begin
    trainer.close()
    result = evaluate.results["deterministic"]
    print(f"{num_envs} instances on {device}: {env_steps:,} steps in {seconds:.1f} s; {result}")
    return result.return_mean


if __name__ == "__main__":
    main()
