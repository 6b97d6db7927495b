"""EnvPool: C++ environments in a thread pool, seen as a gymnasium vector environment.

EnvPool resets in the next step: after an end the observation is the final one, and the next step ignores its
action and gives the first observation of the new episode. Seeds are given when a pool is made, so a reset
with a seed makes it anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from uniarena.batch import tree_map
from uniarena.config import ConfigError
from uniarena.envs.column import env_seeds
from uniarena.envs.notices import notice


class EnvPoolVector(VectorEnv):
    """One pool (`env_type="gymnasium"`) whose every step advances all environments.

    Args:
        pool: what `envpool.make` gave.
        make: seeds, one per environment → a new pool with them; None: the pool keeps the seeds it was made
            with.

    Raises:
        ConfigError: a pool in asynchronous mode (`batch_size` below `num_envs`).
    """

    per_column = True  # a seed for each
    partial_reset = True

    def __init__(self, pool: Any, make: Callable[[list[int]], Any] | None = None) -> None:
        self.make = make
        self._open(pool)

    def _open(self, pool: Any) -> None:
        self.pool = pool
        self.num_envs = int(pool.config["num_envs"])
        if pool.config["batch_size"] not in (0, self.num_envs):
            raise ConfigError(
                f"this EnvPool gives {pool.config['batch_size']} of its {self.num_envs} environments a "
                "step; expected all",
                path="environment.kwargs.batch_size",
                hint="leave batch_size out",
            )
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = getattr(pool, "render_mode", None)
        self.single_observation_space = pool.observation_space
        self.single_action_space = pool.action_space
        self.observation_space = batch_space(pool.observation_space, self.num_envs)
        self.action_space = batch_space(pool.action_space, self.num_envs)
        self._obs: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all, or those of `options["reset_mask"]`; a list of seeds makes a new pool with them."""
        seeded = seed is not None and all(own is not None for own in seed)
        if seeded and self.make is None:
            notice(
                "this EnvPool was made outside and keeps the seeds it was made with; the run's seed is not "
                "used for it"
            )
        elif seeded and self.make is not None:
            self.pool.close()
            self._open(self.make([int(own) for own in seed]))
        rows = (options or {}).get("reset_mask")
        if rows is None:
            self._obs, info = self.pool.reset()
            return self._obs, info
        index = np.flatnonzero(rows).astype(np.int32)
        some, info = self.pool.reset(index)
        self._obs = tree_map(np.copy, self._obs)
        order = np.asarray(info.get("env_id", index))

        def put(leaf: np.ndarray, new: np.ndarray) -> None:
            leaf[order] = new

        tree_map(put, self._obs, some)
        return self._obs, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all."""
        self._obs, reward, terminated, truncated, info = self.pool.step(actions)
        return self._obs, reward, terminated, truncated, info

    def render(self) -> Any:
        """Frames of the first environments, where the pool was made to draw."""
        return self.pool.render() if self.render_mode else None

    def close_extras(self, **kwargs: Any) -> None:
        """End the pool's threads."""
        self.pool.close()


def make_envpool(task: str, num_envs: int, seed: int | None, kwargs: dict[str, Any]) -> EnvPoolVector:
    """A pool of one task.

    Args:
        task: EnvPool's id, such as `Pong-v5`.
        kwargs: further options of `envpool.make`.

    Raises:
        ImportError: EnvPool is not installed.
        ConfigError: it does not know the task.
    """
    import envpool

    if task not in envpool.list_all_envs():
        from uniarena.config.errors import closest

        near = closest(task, envpool.list_all_envs())
        raise ConfigError(
            f"EnvPool {envpool.__version__} has no task {task!r}",
            path="environment.id",
            hint=f"did you mean envpool/{near}?" if near else "envpool.list_all_envs() lists its tasks",
        )

    def make(seeds: list[int]) -> Any:
        return envpool.make(task, env_type="gymnasium", num_envs=num_envs, seed=seeds, **kwargs)

    first = [own for own in env_seeds(seed or 0, num_envs) if own is not None]
    return EnvPoolVector(make(first), make)
