"""Small models and rollouts for learners: distributions in a few lines, no environment."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from uniarena.batch import Batch, Rollout


class Output(NamedTuple):
    dist: Categorical | Gaussian
    value: Tensor
    state: Tensor | None


class Categorical:
    def __init__(self, logits: Tensor) -> None:
        self.log_probs = logits.log_softmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action[..., None])[..., 0]

    def atom_log_prob(self, action: Tensor) -> Tensor:
        return self.log_prob(action)[..., None]

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def sample(self, generator: torch.Generator) -> Tensor:
        uniform = torch.rand(self.log_probs.shape, generator=generator)
        return (self.log_probs - (-uniform.log()).log()).argmax(-1)


class Gaussian:
    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean, self.log_std = mean, log_std

    def atom_log_prob(self, action: Tensor) -> Tensor:
        return -0.5 * ((action - self.mean) / self.log_std.exp()) ** 2 - self.log_std - 0.9189385332

    def log_prob(self, action: Tensor) -> Tensor:
        return self.atom_log_prob(action).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + 1.4189385332).sum(-1).expand(self.mean.shape[:-1])

    def sample(self, generator: torch.Generator) -> Tensor:
        return self.mean + self.log_std.exp() * torch.randn(self.mean.shape, generator=generator)


class TinyModel(nn.Module):
    """Separate policy and value networks; `continuous` makes the outputs the mean of a Gaussian."""

    def __init__(
        self, obs_dim: int, outputs: int, continuous: bool = False, seed: int = 0, hidden: int = 32
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, outputs))
            self.critic = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.log_std = nn.Parameter(torch.zeros(outputs)) if continuous else None

    def forward(self, obs: Tensor, state: Tensor | None = None, is_first: Tensor | None = None) -> Output:
        out = self.policy(obs)
        dist = Categorical(out) if self.log_std is None else Gaussian(out, self.log_std)
        return Output(dist, self.value(obs), None)

    def value(self, obs: Tensor) -> Tensor:
        value: Tensor = self.critic(obs)[..., 0]
        return value


class MemoryModel(nn.Module):
    """A leaky sum of the observations is the state; steps `[N]` or sequences `[L, N]`, as `is_first` says."""

    def __init__(self, obs_dim: int, outputs: int, seed: int = 0) -> None:
        super().__init__()
        self.obs_dim, self.head = obs_dim, TinyModel(obs_dim, outputs, seed=seed)
        self.gate = nn.Parameter(torch.zeros(()))

    def value(self, obs: Tensor, state: Tensor, is_first: Tensor) -> Tensor:
        return self.head.value(self._step(obs, state, is_first))

    def _step(self, obs: Tensor, state: Tensor, is_first: Tensor) -> Tensor:
        return torch.where(is_first[:, None], 0.0, state) * torch.sigmoid(self.gate) + obs

    def forward(self, obs: Tensor, state: Tensor, is_first: Tensor) -> Output:
        if is_first.ndim == 1:
            state = features = self._step(obs, state, is_first)
        else:
            steps = []
            for row, first in zip(obs, is_first, strict=True):
                state = self._step(row, state, first)
                steps.append(state)
            features = torch.stack(steps)
        out = self.head(features)
        return Output(out.dist, out.value, state)


def bandit(
    model: nn.Module, steps: int, columns: int, generator: torch.Generator, symbols: int = 3
) -> Rollout:
    """Echo: the observation is a random symbol (one-hot), reward 1 where the action equals it; one step."""
    symbol = torch.randint(symbols, (steps + 1, columns), generator=generator)
    obs = nn.functional.one_hot(symbol, symbols).float()
    with torch.no_grad():
        dist = model(obs[:-1]).dist
        action = dist.sample(generator)
        log_prob = dist.log_prob(action)
    ones = torch.ones(steps, columns, dtype=torch.bool)
    rows = Batch(
        (steps, columns),
        obs=obs[:-1],
        action=action,
        log_prob=log_prob,
        reward=(action == symbol[:-1]).float(),
        terminated=ones,
        truncated=~ones,
        is_first=ones,
        valid=ones,
    )
    t, b = (x.flatten() for x in torch.meshgrid(torch.arange(steps), torch.arange(columns), indexing="ij"))
    ended = Batch((steps * columns,), t=t, b=b, obs=obs[:-1].reshape(-1, symbols))
    return Rollout(
        rows, Batch((columns,), is_first=ones[0]), Batch((columns,), obs=obs[-1], is_first=ones[0]), ended
    )


def target_task(
    model: nn.Module, rows: int, dims: int, generator: torch.Generator, target: float = 0.7
) -> Rollout:
    """One-step episodes with a continuous action; the reward is minus the squared distance to `target`."""
    obs = torch.ones(rows + 1, 1, 1)
    with torch.no_grad():
        dist = model(obs[:-1]).dist
        action = dist.sample(generator)
        log_prob = dist.log_prob(action)
    ones = torch.ones(rows, 1, dtype=torch.bool)
    batch = Batch(
        (rows, 1),
        obs=obs[:-1],
        action=action,
        log_prob=log_prob,
        reward=-((action - target) ** 2).mean(-1),
        terminated=ones,
        truncated=~ones,
        is_first=ones,
        valid=ones,
    )
    return Rollout(batch, Batch((1,), is_first=ones[0]), Batch((1,), obs=obs[-1], is_first=ones[0]), None)


def remembered(model: MemoryModel, steps: int, columns: int, generator: torch.Generator) -> Rollout:
    """Random observations, truncated every 5 steps, acted on with memory."""
    obs = torch.randn(steps + 1, columns, model.obs_dim, generator=generator)
    first = (torch.arange(steps + 1) % 5 == 0)[:, None].expand(-1, columns)
    state, states, actions, log_probs = torch.zeros(columns, model.obs_dim), [], [], []
    with torch.no_grad():
        for t in range(steps):
            states.append(state)
            out = model(obs[t], state, first[t])
            actions.append(out.dist.sample(generator))
            log_probs.append(out.dist.log_prob(actions[-1]))
            state = out.state
    truncated = first[1:]
    t, b = truncated.nonzero().unbind(1)
    after = torch.stack([*states[1:], state])
    ended = Batch(
        (len(t),), t=t, b=b, obs=torch.randn(len(t), model.obs_dim, generator=generator), state=after[t, b]
    )
    rows = Batch(
        (steps, columns),
        obs=obs[:-1],
        action=torch.stack(actions),
        log_prob=torch.stack(log_probs),
        reward=torch.randn(steps, columns, generator=generator),
        terminated=torch.zeros(steps, columns, dtype=torch.bool),
        truncated=truncated,
        is_first=first[:-1],
        valid=torch.ones(steps, columns, dtype=torch.bool),
    )
    start = Batch((columns,), is_first=first[0], state=states[0])
    return Rollout(rows, start, Batch((columns,), obs=obs[-1], is_first=first[-1], state=state), ended)
