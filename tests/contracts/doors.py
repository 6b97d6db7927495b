"""What later parts of the framework will be like, small: they need nothing but the data contract.

An environment with two agents, a consumer of replayed transitions, a task that needs memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from uniarena.batch import Rollout, Tree, tree_map
from uniarena.envs.actions import ActionMap
from uniarena.envs.protocol import Final, Step
from uniarena.ops.returns import known_successors, successors

N_ENVS, LENGTH, DEATH = 2, 5, 2


class TwoAgents:
    """Two environments of two agents: columns (env 0, agent 0), (env 0, agent 1), (env 1, agent 0), …

    obs = [steps since the reset, agent]; reward 1 + agent. Agent 1 dies in step 2, the episode of all ends in
    step 5. What a dead agent's columns hold is garbage on purpose.
    """

    tensor, has_final_obs, env_id, num_envs = False, True, "two agents", N_ENVS
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.action_map = ActionMap(self.action_space)
        self.agent = np.tile([0, 1], N_ENVS)
        self.t, self.dead = 0, np.zeros(2 * N_ENVS, bool)

    def reset(self, seed: int | None = None, options: Any = None, mask: Any = None) -> np.ndarray:
        self.t, self.dead = 0, np.zeros(2 * N_ENVS, bool)
        return self._obs()

    def step(self, action: np.ndarray) -> Step:
        assert action.shape == (2 * N_ENVS,)
        self.t += 1
        valid = ~self.dead
        over = self.t == LENGTH
        terminated = valid & (over | ((self.t == DEATH) & (self.agent == 1)))
        reward = np.where(valid, 1.0 + self.agent, 0.0).astype(np.float32)
        index = np.flatnonzero(terminated)
        final = Final(index, self._obs()[index]) if len(index) else None
        self.dead = self.dead | (terminated & (not over))
        obs = self.reset() if over else self._obs()
        none = np.zeros_like(terminated)
        return Step(obs, reward, terminated, none, np.full_like(none, over), valid, final, None, {})

    def _obs(self) -> np.ndarray:
        obs = np.stack([np.full(2 * N_ENVS, self.t), self.agent], axis=1).astype(np.float32)
        obs[self.dead] = 1e9
        return obs

    def state_dict(self) -> dict[str, Any]:
        return {"t": self.t, "dead": self.dead.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.t, self.dead = state["t"], state["dead"].copy()

    def close(self) -> None: ...


class Transitions:
    """A replay buffer's view of rollouts: single transitions, each with its true successor, in no order."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.kept: list[tuple[Tensor, ...]] = []

    def add(self, rollout: Rollout) -> None:
        """Keep the rows that are real and whose successor is known."""
        rows, known = rollout.rows, known_successors(rollout)
        keep = rows.valid if known is None else rows.valid & known
        discount = self.gamma * (~rows.terminated).float()
        fields = (rows.obs, rows.action, rows.reward, successors(rollout), discount)
        self.kept.append(tuple(field[keep].clone() for field in fields))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """(obs, action, reward, next_obs, discount) of every transition, as plain numbers."""
        for part in self.kept:
            yield from zip(*(field.reshape(len(field), -1)[:, 0].tolist() for field in part), strict=True)


class Cue(gym.Env[np.ndarray, int]):
    """obs 0 shows −1 or 1, obs 1 to 5 show nothing; the action of step 5 must repeat what was shown."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.cue, self.t = int(self.np_random.integers(2)), 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        right = self.t == 5 and action == self.cue
        self.t += 1
        return self._obs(), float(right), self.t == 6, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([2 * self.cue - 1 if self.t == 0 else 0, self.t / 6], np.float32)


def first_rows(tree: Tree) -> Tree:
    """Row 0 of every leaf."""
    return tree_map(lambda leaf: leaf[0], tree)
