"""A whole process: 10,240 steps of PPO on CartPole with 8 environments, from its imports to its last figure.

python whole.py sb3|uniarena [first]      # first: end with the first update
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

STEPS = 10_240
SIZES = {"n_steps": 128, "batch_size": 256, "n_epochs": 4}


class EndWithUpdate:
    """Ends the process when the first update is done."""

    def on_update_end(self, trainer: Any, event: Any) -> None:
        os._exit(0)


def sb3() -> None:
    import gymnasium as gym
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    env = DummyVecEnv([lambda: gym.make("CartPole-v1")] * 8)
    PPO("MlpPolicy", env, device="cpu", **SIZES).learn(STEPS)


def uniarena(first: bool) -> None:
    import uniarena as ua

    config = {
        "environment": {"id": "CartPole-v1", "num_envs": 8},
        "learner": {"type": "ppo", **SIZES},
        "training": {"total_timesteps": STEPS, "threads": 1, "eval_every_env_steps": 10**9},
        "callbacks": [{"type": "evaluate", "at_end": False}],
    }
    with tempfile.TemporaryDirectory() as folder:
        ua.train(config, run_dir=f"{folder}/run", quiet=True, callbacks=[EndWithUpdate()] if first else [])


if __name__ == "__main__":
    if sys.argv[1] == "sb3":
        sb3()
    else:
        uniarena("first" in sys.argv[2:])
