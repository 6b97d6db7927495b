"""Plug in your own physics engine: arrays in, step, out. This file is the whole of it.

    environment: {id: "examples.own_physics:Cargo", num_envs: 256, kwargs: {load: 2.0}}

An engine steps many worlds at once on arrays of its own (NumPy here; torch, JAX, Warp or a C library with buffers work
alike). What UniArena asks for is one class around it:

    num_envs                                  how many worlds
    device                                    where arrays live; leave it out on the CPU
    observation_space, action_space           of ONE world, from gymnasium.spaces
    reset(seed=None)            → obs [B, …]  begin in all worlds
    step(action [B, …])         → obs [B, …], reward [B], terminated [B], truncated [B], info

`step` itself restarts worlds that ended. `terminated`: the future is worth nothing. `truncated`: it was only cut off,
and then the true last observation matters: `info["next_obs"]` holds the observations before the restart.
Optional: `reset(seed, mask)` with `mask [B]` bool for partial resets, `state_dict()` and `load_state_dict(state)` for
exact resume, `close()`, `render()`. Run it:  python examples/own_physics.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import Tensor

import uniarena
from uniarena.envs.checker import check_env, report

STEP_S = 0.1
LIMIT_M, DAY = 5.0, 100  # the rails' length on either side, and steps of an episode


class Engine:
    """Stands for your own engine: carts on rails, pushed by a force; state `[B, 2]`: position (m), speed (m/s)."""

    def __init__(self, worlds: int, mass: float) -> None:
        self.mass = mass  # kg
        self.state = np.zeros((worlds, 2), np.float32)

    def advance(self, force: np.ndarray) -> None:
        """Move by one time step under `force` `[B]` in N, with viscous friction of 0.5 N·s/m."""
        position, speed = self.state.T
        speed += STEP_S * (force - 0.5 * speed) / self.mass
        position += STEP_S * speed


class Cargo:
    """Bring the cart to the middle and keep it there: reward 1 − |position| / 2, and the end of it beyond the rails.

    Args:
        num_envs: worlds.
        load: kg.
    """

    def __init__(self, num_envs: int = 256, load: float = 1.0) -> None:
        self.num_envs, self.engine = num_envs, Engine(num_envs, load)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)  # N
        self.steps, self.random = np.zeros(num_envs, np.int64), np.random.default_rng()

    def reset(self, seed: int | None = None) -> np.ndarray:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self._restart(np.ones(self.num_envs, bool))
        return self.engine.state.copy()

    def step(self, action: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self.engine.advance(action.numpy()[:, 0])  # a view: no copy on the CPU
        self.steps += 1
        distance = np.abs(self.engine.state[:, 0])
        terminated = distance > LIMIT_M
        truncated = (self.steps >= DAY) & ~terminated
        last = self.engine.state.copy()
        self._restart(terminated | truncated)
        return self.engine.state.copy(), 1.0 - distance / 2, terminated, truncated, {"next_obs": last}

    def state_dict(self) -> dict[str, Any]:
        """All that the future depends on."""
        random = self.random.bit_generator.state
        return {"state": self.engine.state.copy(), "steps": self.steps.copy(), "random": random}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.engine.state[:], self.steps[:] = state["state"], state["steps"]
        self.random.bit_generator.state = state["random"]

    def _restart(self, mask: np.ndarray) -> None:
        self.engine.state[mask] = self.random.uniform(-2.0, 2.0, (int(mask.sum()), 2))
        self.steps[mask] = 0


def main(env_steps: int = 100_000) -> float:
    """Check it, train PPO in it; prints and returns the evaluated return (at most 100)."""
    print(report("Cargo", check_env(Cargo)))
    run = {
        "environment": {"id": Cargo, "num_envs": 256, "kwargs": {"load": 2.0}},
        "learner": {"type": "ppo", "n_steps": 32, "batch_size": 1024, "learning_rate": 1e-3, "gamma": 0.95},
        "training": {"total_timesteps": env_steps, "eval_every_env_steps": env_steps},
    }
    with tempfile.TemporaryDirectory() as folder:
        result = uniarena.train(run, run_dir=f"{folder}/run", quiet=True)
    print(f"Cargo of 2 kg, {result.env_steps:,} steps in {result.wall_s:.1f} s; {result.eval}")
    return result.eval.return_mean


if __name__ == "__main__":
    main()
