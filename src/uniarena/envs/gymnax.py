"""Gymnax (https://github.com/RobertTLange/gymnax) as a tensor simulator: `environment.id: gymnax/CartPole-v1`.

One compiled call steps all instances. Observations, rewards and flags reach torch by dlpack, in the memory that JAX
wrote them to, and actions reach JAX the same way. On a GPU, JAX takes most of the memory unless
`XLA_PYTHON_CLIENT_PREALLOCATE=false` is set.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from torch import Tensor

from uniarena.batch import Tree, tree_map
from uniarena.config import ConfigError
from uniarena.envs.device import usable
from uniarena.envs.jax_arrays import library, to_jax, to_torch


class GymnaxSimulator:
    """B instances of a gymnax environment, for `TensorEnvs`.

    Args:
        env_id: gymnax's own id.
        num_envs: B.
        device: `cpu`, or `cuda` where JAX has it.
        max_episode_steps: the environment's parameter `max_steps_in_episode`; None: its own.
        params: further parameters of the environment, such as `gravity`.

    Raises:
        ConfigError: an unknown id, or parameters that the environment does not have.
    """

    has_final_obs = True

    def __init__(
        self,
        env_id: str,
        num_envs: int = 1,
        device: str = "cpu",
        max_episode_steps: int | None = None,
        **params: Any,
    ) -> None:
        import gymnax

        self._jax = jax = library()
        self.num_envs, self.device = int(num_envs), usable(device)
        try:
            self.env, given = gymnax.make(env_id)
        except ValueError as error:
            raise ConfigError(str(error), path="environment.id", hint="see gymnax.registered_envs") from error
        params |= {} if max_episode_steps is None else {"max_steps_in_episode": max_episode_steps}
        known = [field.name for field in fields(given)]
        if odd := [name for name in params if name not in known]:
            raise ConfigError(
                f"gymnax/{env_id} has no parameter {', '.join(odd)}; it has {', '.join(known)}",
                path="environment.kwargs",
            )
        self.params = given.replace(**params)
        self.observation_space = _space(self.env.observation_space(self.params))
        self.action_space = _space(self.env.action_space(self.params))
        self._home = jax.devices(self.device.type if self.device.type != "cuda" else "gpu")[
            self.device.index or 0
        ]
        self._begin, self._advance = jax.jit(self._reset_all), jax.jit(self._step_all)
        self._restart = jax.jit(self._reset_some)
        self._key, self._state, self._obs = jax.random.PRNGKey(0), None, None

    def reset(self, seed: int | None = None, mask: Tensor | None = None) -> Tree:
        """Begin episodes in all instances, or in those of `mask` `[B]` bool → observations `[B, …]` of all."""
        if seed is not None:
            self._key = self._jax.random.PRNGKey(seed)
        with self._jax.default_device(self._home):
            if mask is None:
                self._key, self._obs, self._state = self._begin(self._key, self.params)
            else:
                old = (self._obs, self._state)
                self._key, self._obs, self._state = self._restart(self._key, old, to_jax(mask), self.params)
        return self._given(self._obs)

    def step(self, action: Tree) -> tuple[Tree, Tensor, Tensor, Tensor, dict[str, Any]]:
        """One time step of all instances; `info["next_obs"]` are the true successors, before the resets."""
        with self._jax.default_device(self._home):
            result = self._advance(self._key, self._state, tree_map(to_jax, action), self.params)
        self._key, self._obs, self._state, reward, terminated, truncated, last = result
        flags = (to_torch(terminated), to_torch(truncated))
        return self._given(self._obs), to_torch(reward), *flags, {"next_obs": self._given(last)}

    def state_dict(self) -> dict[str, Any]:
        """All that the future depends on, as NumPy arrays."""
        leaves = self._jax.tree.leaves((self._key, self._state, self._obs))
        return {str(index): np.array(leaf) for index, leaf in enumerate(leaves)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        if self._state is None:
            self.reset()  # for the structure
        old = self._jax.tree.flatten((self._key, self._state, self._obs))
        leaves = [
            self._jax.device_put(np.asarray(state[str(index)]), self._home) for index in range(len(old[0]))
        ]
        self._key, self._state, self._obs = self._jax.tree.unflatten(old[1], leaves)

    def _reset_all(self, key: Any, params: Any) -> tuple[Any, Any, Any]:
        keys = self._jax.random.split(key, 1 + self.num_envs)
        obs, state = self._jax.vmap(self.env.reset, in_axes=(0, None))(keys[1:], params)
        return keys[0], obs, state

    def _reset_some(self, key: Any, old: Any, mask: Any, params: Any) -> tuple[Any, Any, Any]:
        key, *fresh = self._reset_all(key, params)

        def pick(new: Any, kept: Any) -> Any:
            return self._jax.numpy.where(mask.reshape(-1, *[1] * (new.ndim - 1)), new, kept)

        obs, state = self._jax.tree.map(pick, tuple(fresh), old)
        return key, obs, state

    def _step_all(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, ...]:
        keys = self._jax.random.split(key, 1 + self.num_envs)
        advance = self._jax.vmap(self.env.step, in_axes=(0, 0, 0, None))
        obs, state, reward, terminated, truncated, info = advance(keys[1:], state, action, params)
        flags = (terminated.astype(bool), truncated.astype(bool))
        return keys[0], obs, state, reward.astype("float32"), *flags, info["final_observation"]

    def _given(self, obs: Any) -> Tree:
        return self._jax.tree.map(to_torch, obs)


def _space(space: Any) -> Space[Any]:
    """The Gymnasium space of a gymnax one."""
    kind = type(space).__name__
    if kind == "Discrete":
        return spaces.Discrete(int(space.n), dtype=np.int32)
    if kind == "Box":
        low, high = (np.broadcast_to(np.asarray(bound), space.shape) for bound in (space.low, space.high))
        dtype = np.dtype(space.dtype)
        return spaces.Box(low.astype(dtype), high.astype(dtype), space.shape, dtype.type)
    if kind == "Dict":
        return spaces.Dict({key: _space(child) for key, child in space.spaces.items()})
    if kind == "Tuple":
        return spaces.Tuple([_space(child) for child in space.spaces])
    raise ConfigError(f"gymnax's space {kind} is unknown here", path="environment.id")
