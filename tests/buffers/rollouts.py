"""Small rollouts written by hand, and rollouts of real environments without a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from uniarena.batch import Batch, Rollout, tree_map
from uniarena.buffers.spec import BufferSpec
from uniarena.envs.protocol import Env
from uniarena.sampling import LocalSampler
from uniarena.seeding import Streams

BOX = spaces.Box(-np.inf, np.inf, (1,), np.float32)
TWO = spaces.Discrete(2)


def spec(columns: int = 1, **more: Any) -> BufferSpec:
    """Observations of one number, two actions, γ = 0.9, batches of 32."""
    given = {"observation_space": BOX, "policy_space": TWO, "gamma": 0.9, "batch_size": 32, **more}
    return BufferSpec(columns=columns, **given)


def line(
    obs: Sequence[float],
    last: float,
    *,
    reward: Sequence[float] | None = None,
    terminated: Sequence[int] = (),
    truncated: Sequence[int] = (),
    first: Sequence[int] = (),
    invalid: Sequence[int] = (),
    finals: dict[int, float] | None = None,
    last_first: bool = False,
    has_final_obs: bool = True,
) -> Rollout:
    """One column. `terminated`, `truncated`, `first` and `invalid` list rows; `finals`: row → true last observation."""
    steps = len(obs)

    def flags(rows: Sequence[int]) -> torch.Tensor:
        marked = torch.zeros(steps, 1, dtype=torch.bool)
        marked[list(rows)] = True
        return marked

    rows = Batch(
        (steps, 1),
        obs=torch.tensor(obs, dtype=torch.float32).reshape(steps, 1, 1),
        action=torch.zeros(steps, 1, dtype=torch.int64),
        reward=torch.tensor(reward if reward is not None else [1.0] * steps, dtype=torch.float32).reshape(
            steps, 1
        ),
        terminated=flags(terminated),
        truncated=flags(truncated),
        is_first=flags(first),
        valid=~flags(invalid),
    )
    ended = None
    if finals:
        ended = Batch(
            (len(finals),),
            t=torch.tensor(list(finals)),
            b=torch.zeros(len(finals), dtype=torch.int64),
            obs=torch.tensor(list(finals.values()), dtype=torch.float32)[:, None],
        )
    start = Batch((1,), is_first=rows.is_first[0])
    after = Batch((1,), obs=torch.tensor([[last]]), is_first=torch.tensor([last_first]))
    return Rollout(rows, start, after, ended, has_final_obs)


def by_obs(batch: Batch) -> dict[float, tuple[float, float, float, bool, int]]:
    """Observation → (reward, next observation, discount, terminated, steps) of the sampled rows; all must agree."""
    found: dict[float, tuple[float, float, float, bool, int]] = {}
    for i, obs in enumerate(batch.obs[:, 0].tolist()):
        row = (
            round(batch.reward[i].item(), 5),
            batch.next_obs[i, 0].item(),
            round(batch.discount[i].item(), 5),
            bool(batch.terminated[i]),
            int(batch.n[i]),
        )
        assert found.setdefault(obs, row) == row
    return found


class Zeros:
    """Acts with zeros of an action space; what a sampler needs of an actor."""

    def __init__(self, env: Env) -> None:
        space = env.action_map.policy_space
        zero = torch.zeros(
            space.shape, dtype=torch.int64 if isinstance(space, spaces.Discrete) else torch.float32
        )
        self.action = zero.expand(env.num_envs, *space.shape).to(env.device)

    def initial_state(self, columns: int) -> None:
        return None

    def noise(self, steps: int, columns: int, generator: torch.Generator) -> None:
        return None

    def act(
        self, obs: Any, state: Any, is_first: Any, noise: Any, generator: Any
    ) -> tuple[torch.Tensor, None]:
        return self.action.clone(), None


class RandomActions(Zeros):
    """Acts at random in a Discrete space."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.count = int(env.action_map.policy_space.n)  # type: ignore[attr-defined]

    def act(
        self, obs: Any, state: Any, is_first: Any, noise: Any, generator: Any
    ) -> tuple[torch.Tensor, None]:
        return torch.randint(self.count, self.action.shape, generator=generator), None


def sampler(env: Env, actor: Any = None, seed: int = 0) -> LocalSampler:
    """A sampler over `env` that acts with zeros, or as `actor` does."""
    made = LocalSampler(env, Streams(seed))
    made.publish(actor or Zeros(env), 0)
    return made


def generator(seed: int = 0) -> torch.Generator:
    made = torch.Generator()
    made.manual_seed(seed)
    return made


def same(one: Batch, other: Batch) -> bool:
    """Whether two batches are equal bit for bit."""
    assert set(one) == set(other)
    equal: list[bool] = []
    for name in one:
        tree_map(lambda a, b: equal.append(torch.equal(a, b)), one[name], other[name])
    return all(equal)
