"""ε-greedy: the best action by Q, or with probability ε any legal one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from uniarena.batch import Batch, Tree, tree_leaves
from uniarena.config import ConfigError, config
from uniarena.envs.spaces import MASK, describe
from uniarena.explorers.base import Explorer, ExplorerConfig
from uniarena.explorers.decay import DecayConfig, ends, value_at
from uniarena.explorers.uniform import legal_choice
from uniarena.ops.td import greedy_action
from uniarena.policies.frozen import FrozenPolicy

GREEDY = 2.0
"""In place of a number in [0, 1): this row acts greedily."""


@config
class EpsilonGreedyConfig(ExplorerConfig):
    """Mnih et al. 2015 (Nature 518:529) decay ε linearly; by default from 1 to 0.05 over the first tenth of the run,
    as Stable-Baselines3 does.
    """

    epsilon: float | DecayConfig = (
        DecayConfig()
    )  # probability of a random action: a number, or from start to end

    def __post_init__(self) -> None:
        if not all(0.0 <= value <= 1.0 for value in ends(self.epsilon)):
            raise ConfigError(
                f"got {ends(self.epsilon)}; expected probabilities from 0 to 1.", path="epsilon"
            )


class EpsilonGreedy(Explorer):
    """Acts by the policy's parameters `[B, A]` (Q-values or logits); ε is constant within a chunk."""

    Config: ClassVar[type] = EpsilonGreedyConfig

    def __init__(self, cfg: Any, policy_space: Space[Any] | None = None, warmup: int = 0) -> None:
        super().__init__(cfg, policy_space, warmup)
        refuse_undiscrete(policy_space, "epsilon_greedy")
        self._actions = int(policy_space.n) if isinstance(policy_space, spaces.Discrete) else None

    @property
    def epsilon(self) -> float:
        """The probability of a random action in the next chunk."""
        return value_at(self.cfg.epsilon, self.env_steps, self.progress)

    def noise(
        self, policy: FrozenPolicy, steps: int, columns: int, generator: torch.Generator
    ) -> Tree | None:
        """`[T, B]`: which choice of the legal ones, in [0, 1), or `GREEDY`."""
        policy.noise(steps, columns, generator)  # noisy layers redraw theirs
        drawn = torch.rand(2, steps, columns, generator=generator, device=generator.device)
        if drawn.device.type == "cpu":
            both = drawn.numpy()
            choice = both[1]
            np.putmask(choice, both[0] >= self.epsilon, GREEDY)
            return torch.from_numpy(choice)
        return torch.where(drawn[0] < self.epsilon, drawn[1], GREEDY)

    def act(
        self,
        policy: FrozenPolicy,
        obs: Tree,
        state: Tree | None,
        is_first: Tensor | None,
        noise: Tree | None,
        generator: torch.Generator | None,
    ) -> tuple[Tree, Tree | None]:
        if noise is None:
            assert generator is not None, "without the chunk's noise, a generator is needed"
            noise = self.noise(policy, 1, len(tree_leaves(obs)[0]), generator)[0]  # type: ignore[index]
        mask = obs.get(MASK) if isinstance(obs, dict) else None
        if noise.device.type == "cpu":  # elsewhere, to look at it would wait for the device
            drawn = noise.numpy()
            if np.minimum.reduce(drawn) >= 1.0:
                q, state = policy.params(obs, state, is_first)
                return greedy_action(q, mask), state
            if state is None and self._actions is not None and np.maximum.reduce(drawn) < 1.0:
                return legal_choice(noise, self._actions, mask), None
        q, state = policy.params(obs, state, is_first)
        random = legal_choice(noise, q.shape[-1], mask)
        return torch.where(noise < 1.0, random, greedy_action(q, mask)), state

    def on_arrays(
        self, policy: FrozenPolicy, rows: int, noise: Tree | None
    ) -> Callable[[Any, Any], Any] | None:
        find = getattr(policy, "params_on_arrays", None)
        own = type(self).act is EpsilonGreedy.act and type(self).chunk_act is Explorer.chunk_act
        run = find(rows) if own and find is not None and isinstance(noise, Tensor) else None
        count = self._actions
        if run is None or count is None:
            return None
        scale = np.float32(count)

        def pick_one(obs: np.ndarray, drawn: np.ndarray) -> np.ndarray:
            number = drawn[0]
            if number < 1.0:
                return np.array([int(number * scale)])
            best: np.ndarray = run(obs).argmax(1)
            return best

        def pick(obs: np.ndarray, drawn: np.ndarray) -> np.ndarray:
            if np.maximum.reduce(drawn) < 1.0:
                return (drawn * scale).astype(np.int64)
            best: np.ndarray = run(obs).argmax(-1)
            if np.minimum.reduce(drawn) >= 1.0:
                return best
            return np.where(drawn < 1.0, (drawn * scale).astype(np.int64), best)

        return pick_one if rows == 1 else pick

    def behaviour_log_prob(self, policy: FrozenPolicy, rows: Batch, state: Tree | None = None) -> None:
        return None


def refuse_undiscrete(policy_space: Space[Any] | None, name: str) -> None:
    """Explorers that compare actions one by one need a list of them.

    Raises:
        ConfigError: another space than Discrete; None is not looked at.
    """
    if policy_space is not None and not isinstance(policy_space, spaces.Discrete):
        raise ConfigError(
            f"{name} picks one of a list of actions; the policy's are {describe(policy_space)}.",
            path="agent.explorer.type",
            hint="use sample, or gaussian for Box actions.",
        )
