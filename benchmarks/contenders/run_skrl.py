"""skrl on one task, with the others' networks and schedule.

It does less work off-policy: its Gaussian policy is not squashed, so there is no tanh and no log-determinant, and DQN's
loss is a plain square without clipping. In PPO it clips values, as its default is, and bootstraps no truncated episode.
"""

from __future__ import annotations

import argparse
from functools import partial

import gymnasium as gym
import torch
from on_policy import WORK, Work, batch
from skrl.agents.torch.dqn import DQN, DQN_CFG
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from stopwatch import Stopwatch, VectorStopwatch, arguments
from torch import nn

CAPACITY = 1_000_000
QUIET = {"write_interval": 0, "checkpoint_interval": 0}


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


class Actor(GaussianMixin, Model):
    def __init__(self, observation_space, action_space) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        GaussianMixin.__init__(self, clip_actions=True)
        self.net = mlp(self.num_observations, 256, 2 * self.num_actions)

    def compute(self, inputs, role):
        mean, log_std = self.net(inputs["observations"]).chunk(2, dim=-1)
        return mean, {"log_std": log_std}


class Critic(DeterministicMixin, Model):
    def __init__(self, observation_space, action_space) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = mlp(self.num_observations + self.num_actions, 256, 1)

    def compute(self, inputs, role):
        return self.net(torch.cat([inputs["observations"], inputs["taken_actions"]], dim=-1)), {}


class Q(DeterministicMixin, Model):
    def __init__(self, observation_space, action_space) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = mlp(self.num_observations, 64, self.num_actions)

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


def tanh(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


class Classes(CategoricalMixin, Model):
    def __init__(self, observation_space, action_space) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        CategoricalMixin.__init__(self)
        self.net = tanh(self.num_observations, self.num_actions)

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


class Gaussian(GaussianMixin, Model):
    def __init__(self, observation_space, action_space) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        GaussianMixin.__init__(self)
        self.net = tanh(self.num_observations, self.num_actions)
        self.log_std = nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    def __init__(self, observation_space, action_space) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = tanh(self.num_observations, 1)

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


def ppo(env, work: Work):
    spaces = env.observation_space, env.action_space
    cfg = PPO_CFG(
        rollouts=work.steps,
        learning_epochs=work.epochs,
        mini_batches=work.steps * work.envs // work.batch,
        learning_rate=3e-4,
        value_loss_scale=0.5,
        experiment=QUIET,
    )
    policy = Classes if isinstance(spaces[1], gym.spaces.Discrete) else Gaussian
    return PPO(
        models={"policy": policy(*spaces), "value": Value(*spaces)},
        memory=RandomMemory(memory_size=work.steps, num_envs=work.envs, device="cpu"),
        cfg=cfg,
        observation_space=spaces[0],
        action_space=spaces[1],
        device="cpu",
    )


def sac(env, total: int):
    spaces = env.observation_space, env.action_space
    models = {
        name: Critic(*spaces) for name in ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
    }
    cfg = SAC_CFG(
        batch_size=256,
        learning_rate=3e-4,
        random_timesteps=100,
        learning_starts=100,
        initial_entropy_value=1.0,
        experiment=QUIET,
    )
    return SAC(
        models={"policy": Actor(*spaces), **models},
        memory=RandomMemory(memory_size=CAPACITY, num_envs=1, device="cpu"),
        cfg=cfg,
        observation_space=spaces[0],
        action_space=spaces[1],
        device="cpu",
    )


def dqn(env, total: int):
    spaces = env.observation_space, env.action_space
    cfg = DQN_CFG(
        batch_size=32,
        learning_rate=1e-4,
        random_timesteps=100,
        learning_starts=100,
        update_interval=4,
        target_update_interval=2500,  # it counts updates
        polyak=1.0,
        exploration_scheduler=lambda step, steps: max(0.05, 1.0 - 0.95 * step / (0.1 * steps)),
        experiment=QUIET,
    )
    return DQN(
        models={"q_network": Q(*spaces), "target_q_network": Q(*spaces)},
        memory=RandomMemory(memory_size=CAPACITY, num_envs=1, device="cpu"),
        cfg=cfg,
        observation_space=spaces[0],
        action_space=spaces[1],
        device="cpu",
    )


TASKS = {"sac-halfcheetah": ("HalfCheetah-v5", sac), "dqn-cartpole": ("CartPole-v1", dqn)}


def watched(args: argparse.Namespace):
    """The environment of a task as skrl takes it, the agent's maker, and what counts its steps."""
    if args.task not in WORK:
        env_id, make_agent = TASKS[args.task]
        single = Stopwatch(gym.make(env_id), args.first, args.last)
        return single, lambda env: make_agent(env, args.last + 1), single
    work, made = WORK[args.task], []
    if work.native:
        vector = batch(work, args.first, args.last, made)()
    else:
        single = partial(gym.make, work.env_id)  # not `column`: after an end a step of it is a reset
        made.append(VectorStopwatch(gym.vector.SyncVectorEnv([single] * work.envs), args.first, args.last))
        vector = made[0]
    return vector, lambda env: ppo(env, work), made[0]


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    set_seed(args.seed)
    inner, make_agent, watch = watched(args)
    env, total = wrap_env(inner), args.last + 1
    agent = make_agent(env)
    cfg = {
        "timesteps": total,
        "headless": True,
        "disable_progressbar": True,
        "close_environment_at_exit": False,
    }
    SequentialTrainer(env=env, agents=agent, cfg=cfg).train()
    watch.watch.report()


if __name__ == "__main__":
    main()
