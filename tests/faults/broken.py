"""What breaks at a known moment: environments, networks, callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from uniarena import Agent, Trainer, make_env
from uniarena.config.guard import GuardConfig

NAN, INF = float("nan"), float("inf")


class Echo(gym.Env[Any, Any]):
    """Episodes of 10 steps; the reward is 1 for naming the symbol that is shown, and less the further off a Box is.

    Args:
        where: `obs`, `reward` or `final`: what is replaced by `value` in the `at`-th step of the environment's life,
            and every `every`-th after it; `final` is the observation that an episode ends with.
        keys: the observation is a map with the symbol under `seen.symbol`, and a constant beside it.
        box: actions are a Box.
        length: of episodes.
    """

    def __init__(
        self,
        where: str = "",
        value: float = NAN,
        at: int = 17,
        every: int = 0,
        keys: bool = False,
        box: bool = False,
        length: int = 10,
    ) -> None:
        symbol = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space: Any = symbol
        if keys:
            self.observation_space = spaces.Dict({"one": symbol, "seen": spaces.Dict({"symbol": symbol})})
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if box else spaces.Discrete(3)
        self.where, self.value, self.at, self.every = where, value, at, every
        self.keys, self.box, self.length = keys, box, length
        self.symbol = self.t = self.life = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(False), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        wrong = abs(float(action[0]) - (self.symbol - 1)) if self.box else float(action != self.symbol)
        self.t, self.life = self.t + 1, self.life + 1
        late = self.life - self.at
        broken = bool(self.where) and (late == 0 or (self.every > 0 and late > 0 and late % self.every == 0))
        over = self.t >= self.length
        reward = self.value if broken and self.where == "reward" else 1.0 - wrong
        bad = broken and (self.where == "obs" or (self.where == "final" and over))
        return self._obs(bad), reward, False, over, {}

    def _obs(self, broken: bool) -> Any:
        self.symbol = int(self.np_random.integers(3))
        obs = np.eye(3, dtype=np.float32)[self.symbol]
        if broken:
            obs[1] = self.value
        return {"one": np.ones(3, np.float32), "seen": {"symbol": obs}} if self.keys else obs


class Sim:
    """A tensor simulator whose reward (or observation) is bad in column 2 in the fifth step; episodes of 4."""

    def __init__(self, where: str = "reward", final: str = "final_obs", value: float = NAN) -> None:
        self.num_envs, self.device, self.where, self.final = 4, torch.device("cpu"), where, final
        self.value, self.t, self.life = value, 0, 0
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        self.t = self.life = 0
        return torch.zeros(4, 2), {}

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        self.t, self.life = self.t + 1, self.life + 1
        reward = torch.ones(4)
        following = torch.full((4, 2), float(self.t))
        if self.life == 5:
            (reward if self.where == "reward" else following)[2] = self.value
        over = torch.full((4,), self.t == 4)
        if self.t == 4:
            self.t = 0
        obs = torch.zeros(4, 2) if bool(over[0]) else following.clone()
        return obs, reward, torch.zeros(4, dtype=torch.bool), over, {self.final: following}


class Net(nn.Module):
    """Value and action parameters; in its `at`-th pass with gradients (`times` of them) every output is `value`."""

    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        at: int = 0,
        times: int = 1,
        value: float = NAN,
        slope: bool = False,
        alone: bool = False,
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, 32), nn.Tanh(), nn.Linear(32, act_dim))
        self.critic = None if alone else nn.Linear(obs_dim, 1)
        self.at, self.times, self.value, self.slope, self.passes = at, times, value, slope, 0

    def forward(self, obs: Tensor) -> Any:
        out = self.body(obs)
        if torch.is_grad_enabled() and self.training:
            self.passes += 1
            if self.at and self.at <= self.passes < self.at + self.times:
                # √ at 0 has value 0 and slope ∞: with `slope` the loss is good and its gradient is not
                zero = (self.body[0].weight - self.body[0].weight.detach()).sum()
                out = out + zero.abs().sqrt() if self.slope else out * self.value
        return out if self.critic is None else (self.critic(obs), out)


class Poison:
    """Changes the agent in the `at`-th event of one kind (and `times` − 1 after it)."""

    def __init__(self, event: str, what: Callable[[Trainer, Any], None], at: int = 3, times: int = 1) -> None:
        self.what, self.at, self.times, self.seen = what, at, times, 0
        setattr(self, event, self._hear)

    def _hear(self, trainer: Trainer, event: Any) -> None:
        self.seen += 1
        if self.at <= self.seen < self.at + self.times:
            with torch.no_grad():
                self.what(trainer, event)


def parameter(trainer: Trainer, event: Any) -> None:
    """NaN in one entry of the policy's first layer."""
    first = next(iter(trainer.agent.model.policy.parameters()))
    first.view(-1)[1] = NAN


def moments(trainer: Trainer, event: Any) -> None:
    """NaN in one entry of Adam's second moment of the first parameter that has one."""
    optimizer = next(iter(trainer.agent.learner.optimizers.values()))
    state = next(iter(optimizer.torch.state.values()))
    state["exp_avg_sq"].view(-1)[0] = NAN


def gradient(trainer: Trainer, event: Any) -> None:
    """NaN in one gradient of the step at hand."""
    next(iter(event.gradients.values())).view(-1)[0] = NAN


LEARNERS: dict[str, dict[str, Any]] = {
    "ppo": {"n_steps": 32, "batch_size": 32, "n_epochs": 4, "learning_rate": 3e-3, "gamma": 0.5},
    "dqn": {"learning_starts": 20, "batch_size": 32, "learning_rate": 3e-3, "gamma": 0.5}
    | {"train_every_env_steps": 4, "updates_per_env_step": 0.5, "target_update_updates": 20},
    "sac": {"learning_starts": 20, "batch_size": 32, "learning_rate": 3e-3, "gamma": 0.5}
    | {"updates_per_env_step": 0.25, "alpha": 0.01},
}


def trainer_of(
    learner: str,
    specs: Any,
    guard: Any = "stop",
    *,
    policy: dict[str, Any] | None = None,
    wrappers: Any = (),
    parts: dict[str, Any] | None = None,
    **rest: Any,
) -> Trainer:
    """A trainer over environments made by `specs` (one a column), without a run folder unless one is given."""
    env = make_env(specs, len(specs) if isinstance(specs, list) else 1, wrappers=wrappers)
    section = {"type": learner, **LEARNERS[learner], **rest.pop("settings", {})}
    if learner != "ppo" and not (parts or {}).get("buffer"):
        parts = {**(parts or {}), "buffer": {"capacity": 1000}}
    agent = Agent.assemble(env, section, policy=policy or {"hidden_sizes": [32]}, parts=parts)
    cfg = GuardConfig(**(guard if isinstance(guard, dict) else {"rule": guard}))
    return Trainer(agent, env, guard=cfg, **rest)


def two(learner: str, **fault: Any) -> list[Callable[[], Echo]]:
    """A good environment and a broken one."""
    box = learner == "sac"
    keys = fault.get("keys", False)
    return [lambda: Echo(box=box, keys=keys), lambda: Echo(box=box, **fault)]


def good(agent: Agent) -> bool:
    """Every parameter and every moment of the optimisers is finite."""
    tensors = list(agent.learner.parameters())
    for optimizer in agent.learner.optimizers.values():
        tensors += [x for state in optimizer.torch.state.values() for x in state.values()]
    return all(bool(x.isfinite().all()) for x in tensors)
