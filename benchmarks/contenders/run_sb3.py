"""Stable-Baselines3 on one task, with its own defaults where no figure is named."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from stable_baselines3 import DQN, SAC
from stopwatch import Stopwatch, arguments

TASKS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "sac-halfcheetah": ("HalfCheetah-v5", SAC, {}),
    "dqn-cartpole": ("CartPole-v1", DQN, {}),
}


def main() -> None:
    args = arguments()
    env_id, algorithm, settings = TASKS[args.task]
    torch.set_num_threads(args.threads)
    env = Stopwatch(gym.make(env_id), args.first, args.last)
    model = algorithm("MlpPolicy", env, seed=args.seed, device="cpu", **settings)
    model.learn(args.last + 1)
    env.report(updates=model._n_updates)


if __name__ == "__main__":
    main()
