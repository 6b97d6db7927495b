"""Stable-Baselines3 on one task, with its own defaults where no figure is named."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from on_policy import WORK, column
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack
from stopwatch import Marks, Stopwatch, arguments

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


class Count(BaseCallback):
    """Counts steps of all environments, where these are in other processes."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.marks = marks

    def _on_step(self) -> bool:
        self.marks.see()
        return True


def ale(env_id: str, **options: Any) -> gym.Env:
    """An environment of ALE, whose package registers it, in this process or another one."""
    import ale_py  # in that suite's environment alone

    gym.register_envs(ale_py)
    return gym.make(env_id, frameskip=1, repeat_action_probability=0.0, **options)


def atari(args: argparse.Namespace) -> None:
    """Its own wrappers around ALE, in processes, which is quicker here than in this one."""
    work = WORK[args.task]
    env = VecFrameStack(
        make_atari_env(partial(ale, f"ALE/{work.env_id}"), work.envs, args.seed, vec_env_cls=SubprocVecEnv), 4
    )
    settings = {"n_steps": work.steps, "batch_size": work.batch, "n_epochs": work.epochs}
    rates = {"learning_rate": 2.5e-4, "clip_range": 0.1}
    model = PPO("CnnPolicy", env, seed=args.seed, device="cpu", **rates, **settings)
    marks = Marks(args.first, args.last, work.envs, children=True)
    model.learn((args.last + 1) * work.envs, callback=Count(marks))
    marks.report(updates=model._n_updates)


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    if args.task in WORK and WORK[args.task].images:
        atari(args)
    if args.task in WORK:
        on_policy(args)
    env_id, algorithm, settings = TASKS[args.task]
    env = Stopwatch(gym.make(env_id), args.first, args.last)
    model = algorithm("MlpPolicy", env, seed=args.seed, device="cpu", **settings)
    model.learn(args.last + 1)
    env.watch.report(updates=model._n_updates)


if __name__ == "__main__":
    main()
