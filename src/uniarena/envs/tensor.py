"""TensorEnvs: simulators that speak tensors (Isaac Gym and Lab style, own physics engines, JAX by dlpack).

Nothing is copied and nothing waits for the device: what the simulator returns is what the learner stores.

An own engine plugs in as one class in one file, named by import path (`environment.id: my_sim:MySim`):

    class MySim:
        def __init__(self, num_envs: int = 1024, device: str = "cpu", **options): ...
        num_envs: int
        device: torch.device                          # where every tensor lives
        observation_space, action_space               # gymnasium spaces of ONE environment
        has_final_obs: bool                           # optional: info carries final observations (see below)

        def reset(self, seed=None):                   # all environments; → obs [B, …], or (obs, info)
        def step(self, action):                       # [B, …] → obs, reward, terminated, truncated, info
        def close(self): ...                          # optional; also render() → [H, W, 3]
        def state_dict(self) / load_state_dict(self, state)          # optional: exact resume

`step` resets ended environments itself, in the same step. The old form (obs, reward, done, info) with
`info["time_outs"]` is understood too, `reset` may take `mask` ([B] bool) or `env_ids` for partial resets,
and spaces may be given as `single_observation_space`, or as `num_obs` and `num_actions`. Observations may be
dicts; where the space is no Dict, the entry `policy` or `obs` is taken.

An episode cut by a time limit needs its true last observation. Give it in `info["final_obs"]` (`[B, …]`,
used where an episode ended) or give every successor in `info["next_obs"]` (`[B, …]`). Without either,
`has_final_obs` is False: a truncated row's target is then its own value, which is said once.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from uniarena.batch import Tree, tree_map
from uniarena.config import ConfigError
from uniarena.envs.actions import ActionMap
from uniarena.envs.column import base_set, close_quietly
from uniarena.envs.info import METRICS, SUCCESS
from uniarena.envs.masks import MaskSource, find_source, masked_space, with_mask
from uniarena.envs.native import load_native, native_state
from uniarena.envs.notices import notice
from uniarena.envs.protocol import Step
from uniarena.envs.spaces import refuse_unsupported, storage_space

_FINAL = ("final_obs", "final_observation")
_GROUPS = ("policy", "obs")


class TensorEnvs:
    """B columns of one tensor simulator (see `envs.protocol.Env`).

    Args:
        sim: the simulator, as described above.
        env_id: name for messages.
        seed: for the first reset, where `reset` is given none.
        action_mask: `auto`, `info`, `none` or a key; see `envs.masks`. An all-zero mask reads as all ones
            here: to find one would mean to wait for the device.

    Raises:
        ConfigError: it lacks something, or has unsupported spaces.
    """

    tensor = True

    def __init__(
        self, sim: Any, env_id: str = "", seed: int | None = None, action_mask: str = "auto"
    ) -> None:
        self.sim = sim
        self.env_id = env_id or type(sim).__name__
        self.num_envs = int(sim.num_envs)
        self.device = torch.device(getattr(sim, "device", "cpu"))
        space, self.action_space = _spaces(sim, self.env_id)
        refuse_unsupported(space, f"observation space of {self.env_id!r}")
        self.action_map = ActionMap(self.action_space)
        self._dict = isinstance(space, spaces.Dict)
        self._storage = storage_space(space)
        self._reset_takes = set(inspect.signature(sim.reset).parameters)
        self.partial_reset = bool(self._reset_takes & {"mask", "env_ids"})
        self._seed = seed
        self._to_sim: Any = lambda action: action
        info = self._first()
        self._source: MaskSource | None = find_source(action_mask, space, self.action_space, info)
        self.observation_space = (
            self._storage if self._source is None else masked_space(self._storage, self._source)
        )
        self.has_final_obs, self._final_key = self._find_final()
        if not self.has_final_obs:
            notice(
                f"{self.env_id} loses the observation that an episode ends with (no info['final_obs'] or "
                "info['next_obs']): "
                "where an episode is only cut off, its last row is worth its own value (advantage 0)"
            )
        self._obs: Tree = None
        self._closed = False

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None, mask: Any | None = None
    ) -> Tree:
        """Begin episodes in all columns, or in those of `mask` `[B]` where the simulator can.

        Raises:
            ValueError: a partial reset of a simulator that has none.
        """
        seed, self._seed = (self._seed if seed is None else seed), None
        given: dict[str, Any] = {"seed": seed, "options": options}
        if mask is not None:
            if not self.partial_reset:
                raise ValueError(
                    f"{self.env_id} cannot reset single environments: give its reset() a parameter `mask` "
                    "([B] bool) or "
                    "`env_ids`, or reset all"
                )
            mask = torch.as_tensor(mask, device=self.device)
            given |= {"mask": mask} if "mask" in self._reset_takes else {"env_ids": mask.nonzero().squeeze(1)}
        if seed is not None:
            self.action_space.seed(seed)
        result = self.sim.reset(
            **{k: v for k, v in given.items() if k in self._reset_takes and v is not None}
        )
        obs, info = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        self._obs = self._masked(self._tensors(obs), info)
        return self._obs

    def step(self, action: Tree) -> Step:
        """One step of all columns with the policy's own actions `[B, …]` on `device`."""
        obs, reward, terminated, truncated, info = self._call(self.action_map(action))
        ended = terminated | truncated
        self._obs = self._masked(obs, info)
        next_obs = self._successors(obs, ended, info) if self._final_key else None
        return Step(self._obs, reward, terminated, truncated, ended, None, None, next_obs, self._told(info))

    def close(self) -> None:
        """Close the simulator, where it can be closed; again is harmless."""
        if not self._closed:
            self._closed = True
            if hasattr(self.sim, "close"):
                close_quietly(self.sim, self.env_id)

    def render(self) -> np.ndarray | None:
        """A picture, where the simulator draws."""
        picture = self.sim.render() if hasattr(self.sim, "render") else None
        return picture.cpu().numpy() if isinstance(picture, Tensor) else picture

    def state_dict(self) -> dict[str, Any] | None:
        """Native state, or None where the simulator cannot give it."""
        state = native_state(self.sim)
        return (
            None
            if state is None or self._obs is None
            else {"sim": state, "obs": tree_map(torch.clone, self._obs)}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        load_native(self.sim, state["sim"])
        self._obs = tree_map(lambda leaf: torch.as_tensor(leaf).to(self.device, copy=True), state["obs"])
        self._seed = None

    def get_attr(self, name: str) -> list[Any]:
        """Attribute `name` of the simulator, the only entry: it is one object for all columns."""
        return [getattr(self.sim, name)]

    def set_attr(self, name: str, value: Any) -> None:
        """Set attribute `name` of the simulator, by `set_<name>(value)` where it has that."""
        base_set(self.sim, name, value)

    def call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call method `name` of the simulator."""
        return [getattr(self.sim, name)(*args, **kwargs)]

    def __repr__(self) -> str:
        return f"TensorEnvs({self.env_id}, num_envs={self.num_envs}, {self.device})"

    def _first(self) -> Mapping[str, Any]:
        """The first reset, which shows what the simulator speaks and, in its info, whether it has masks."""
        result = self.sim.reset()
        obs, info = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        if _is_jax(obs):
            from uniarena.envs.jax_arrays import to_jax

            self._to_sim = lambda action: tree_map(to_jax, action)
        self._tensors(obs)
        return info

    def _find_final(self) -> tuple[bool, str | None]:
        """Whether final observations are given, and under which key: declared, or seen in one step."""
        declared = getattr(self.sim, "has_final_obs", None)
        if declared is False:
            return False, None
        zeros = tree_map(
            lambda leaf: (
                torch.zeros((self.num_envs, *leaf.shape), dtype=torch.float32, device=self.device)
                if leaf.dtype.kind == "f"
                else torch.zeros((self.num_envs, *leaf.shape), dtype=torch.int64, device=self.device)
            ),
            _example(self.action_map.policy_space),
        )
        info = self._call(self.action_map(zeros))[-1]
        key = next((name for name in ("next_obs", *_FINAL) if name in info), None)
        if key is None and declared:
            key = _FINAL[0]  # it comes only in steps in which something ended
        return key is not None, key

    def _call(self, action: Tree) -> tuple[Tree, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """The simulator's step in the five-value form, as tensors."""
        result = self.sim.step(self._to_sim(action))
        if len(result) == 5:
            obs, reward, terminated, truncated, info = result
            terminated, truncated = _tensor(terminated).bool(), _tensor(truncated).bool()
        elif len(result) == 4:
            obs, reward, done, info = result
            done = _tensor(done).bool()
            time_outs = info.get("time_outs", info.get("TimeLimit.truncated"))
            truncated = torch.zeros_like(done) if time_outs is None else _tensor(time_outs).bool() & done
            terminated = done & ~truncated
        else:
            raise TypeError(
                f"step() of {self.env_id} returned {len(result)} values; expected (obs, reward, "
                "terminated, truncated, info) or "
                "(obs, reward, done, info)"
            )
        return self._tensors(obs), _tensor(reward).float(), terminated, truncated, info

    def _tensors(self, obs: Any) -> Tree:
        """The simulator's observation in the storage dtypes; memory is shared where these match."""
        if isinstance(obs, Mapping) and not self._dict:
            obs = next(
                (obs[name] for name in _GROUPS if name in obs),
                None if len(obs) != 1 else next(iter(obs.values())),
            )
            if obs is None:
                raise ConfigError(
                    f"{self.env_id} returns a dict observation, but its space is no Dict",
                    path="environment.id",
                    hint="state a Dict observation_space, or return the part for the policy as 'policy'",
                )
        return _match(self._storage, obs)

    def _successors(self, obs: Tree, ended: Tensor, info: Mapping[str, Any]) -> Tree:
        """Dense true successors `[B, …]`."""
        key = self._final_key
        given = info.get(key) if key is not None else None
        if given is None:  # this step ended nothing, or the simulator would have said it
            return self._obs
        found = self._tensors(given)
        if key != "next_obs":
            found = tree_map(lambda last, new: torch.where(_over(ended, new), last, new), found, obs)
        return self._masked(found, {}) if self._source is not None else found

    def _masked(self, obs: Tree, info: Mapping[str, Any]) -> Tree:
        if self._source is None:
            return obs
        place, key, size = self._source
        given = info.get(key)
        if place != "info":
            obs = dict(obs)
            given = obs.pop(key)
            if place == "drop":
                return obs
        if given is None:
            ones = torch.ones((self.num_envs, size), dtype=torch.int8, device=self.device)
            return with_mask(obs, ones)
        mask = _tensor(given).reshape(self.num_envs, size) != 0
        return with_mask(obs, (mask | ~mask.any(-1, keepdim=True)).to(torch.int8))

    def _told(self, info: Mapping[str, Any]) -> dict[str, Any]:
        if METRICS not in info and SUCCESS not in info:
            return {}
        entries = {f"{METRICS}/{key}": value for key, value in info.get(METRICS, {}).items()}
        if SUCCESS in info:
            entries[SUCCESS] = info[SUCCESS]
        return {key: self._figure(value) for key, value in entries.items() if np.ndim(value) <= 1}

    def _figure(self, value: Any) -> Tensor:
        """A number per environment `[B]`; one number for all is repeated."""
        return _tensor(value).to(self.device, torch.float32).expand(self.num_envs)


def is_tensor_env(env: Any) -> bool:
    """Whether an object is a batched simulator: it has `num_envs`, `reset` and `step`."""
    return all(hasattr(env, name) for name in ("num_envs", "reset", "step")) and not hasattr(
        env, "action_map"
    )


def _spaces(sim: Any, env_id: str) -> tuple[Space[Any], Space[Any]]:
    found = []
    for kind, count in (("observation", "num_obs"), ("action", "num_actions")):
        space = getattr(sim, f"single_{kind}_space", None) or getattr(sim, f"{kind}_space", None)
        size = getattr(sim, count, None)
        if space is None and size is not None:
            space = spaces.Box(-np.inf, np.inf, (int(size),), np.float32)
        if not isinstance(space, Space):
            raise ConfigError(
                f"{env_id} has no {kind}_space ({space!r})",
                path="environment.id",
                hint=f"give it `{kind}_space`, the gymnasium space of one environment, or `{count}`",
            )
        found.append(space)
    return found[0], found[1]


def _match(space: Space[Any], obs: Any) -> Tree:
    if isinstance(space, spaces.Dict):
        return {key: _match(child, obs[key]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_match(child, leaf) for child, leaf in zip(space.spaces, obs, strict=True))
    leaf = _tensor(obs)
    return leaf.float() if leaf.is_floating_point() and leaf.dtype != torch.float32 else leaf


def _tensor(value: Any) -> Tensor:
    """Any array as a tensor, sharing its memory."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if _is_jax(value):
        from uniarena.envs.jax_arrays import to_torch

        return to_torch(value)
    return torch.from_dlpack(value) if hasattr(value, "__dlpack__") else torch.as_tensor(value)


def _is_jax(value: Any) -> bool:
    while isinstance(value, (Mapping, tuple)) and len(value):
        value = next(iter(value.values() if isinstance(value, Mapping) else value))
    return type(value).__module__.partition(".")[0] in ("jax", "jaxlib")


def _example(space: Space[Any]) -> Tree:
    """An action of the space, for its structure."""
    if isinstance(space, spaces.Dict):
        return {key: _example(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_example(child) for child in space.spaces)
    return np.zeros(space.shape or (), space.dtype)


def _over(flags: Tensor, leaf: Tensor) -> Tensor:
    """`[B]` shaped so that it broadcasts over `[B, …]`."""
    return flags.reshape(-1, *[1] * (leaf.dim() - 1))
