"""Stable-Baselines3 on one task, with its own defaults where no figure is named."""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import torch
from on_policy import WORK, column
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.vec_env import DummyVecEnv
from stopwatch import Stopwatch, arguments

TASKS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "sac-halfcheetah": ("HalfCheetah-v5", SAC, {}),
    "dqn-cartpole": ("CartPole-v1", DQN, {}),
}


def on_policy(args: argparse.Namespace) -> None:
    """It has no use for a batch of environments that is one object."""
    work, made = WORK[args.task], []  # type: ignore[var-annotated]
    env = DummyVecEnv([column(work, args.first, args.last, made)] * work.envs)
    settings = {"n_steps": work.steps, "batch_size": work.batch, "n_epochs": work.epochs}
    model = PPO("MlpPolicy", env, seed=args.seed, device="cpu", **settings)
    model.learn((args.last + 1) * work.envs)
    made[0].watch.report(updates=model._n_updates)


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    if args.task in WORK:
        on_policy(args)
    env_id, algorithm, settings = TASKS[args.task]
    env = Stopwatch(gym.make(env_id), args.first, args.last)
    model = algorithm("MlpPolicy", env, seed=args.seed, device="cpu", **settings)
    model.learn(args.last + 1)
    env.watch.report(updates=model._n_updates)


if __name__ == "__main__":
    main()
