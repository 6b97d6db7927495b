"""Action rescale, clip and stickiness. Wrappers see the policy's action; the adapter maps it to the env's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from uniarena.batch import Tree, tree_map
from uniarena.config import ConfigError, config
from uniarena.envs.actions import ActionMap
from uniarena.envs.protocol import Env, Step
from uniarena.envs.spaces import leaf_spaces
from uniarena.envs.wrappers.base import EnvWrapper, copy_tree
from uniarena.envs.wrappers.leaves import get_leaf, set_leaves
from uniarena.seeding import Streams


@config
class RescaleActionConfig:
    """Settings of `RescaleAction`."""


class RescaleAction(EnvWrapper):
    """The policy acts in [-1, 1]; the one action map stretches that to the bounds of every Box leaf.

    Raises:
        ConfigError: no Box in the action space, or a dimension without finite bounds.
    """

    Config = RescaleActionConfig
    where = "environment.wrappers.rescale_action"

    def __init__(self, env: Env, cfg: RescaleActionConfig) -> None:
        super().__init__(env, cfg)
        space = env.action_map.env_space
        for path, box in _boxes(space, self.where).items():
            loose = np.flatnonzero(~(np.isfinite(box.low) & np.isfinite(box.high)).ravel())
            if len(loose):
                raise ConfigError(
                    f"the action {path!r} has no finite bounds in dimension(s) {loose.tolist()[:10]}; "
                    "[-1, 1] cannot be stretched to them",
                    path=self.where,
                    hint="give the action space finite bounds, or remove this wrapper",
                )
        self.action_map = ActionMap(space, rescale=True)


@config
class ClipActionConfig:
    """Settings of `ClipAction`."""


class ClipAction(EnvWrapper):
    """Clips Box actions to their bounds, so that the wrappers below see them as the environment will.

    The adapter clips in any case, since an environment never gets an action outside its space; this makes it
    explicit.

    Raises:
        ConfigError: no Box in the action space.
    """

    Config = ClipActionConfig
    where = "environment.wrappers.clip_action"

    def __init__(self, env: Env, cfg: ClipActionConfig) -> None:
        super().__init__(env, cfg)
        _boxes(env.action_map.env_space, self.where)
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._bounds_of: ActionMap | None = None

    def _map_action(self, action: Tree) -> Tree:
        if self._bounds_of is not self.action_map:  # a rescale further out changes the policy's bounds
            self._bounds_of = self.action_map
            self._bounds = {
                path: (self._own(box.low), self._own(box.high))
                for path, box in leaf_spaces(self.action_map.policy_space)
                if isinstance(box, spaces.Box)
            }
        clip = torch.clamp if self.tensor else np.clip
        return set_leaves(
            action, {path: clip(get_leaf(action, path), *b) for path, b in self._bounds.items()}
        )

    def _own(self, bound: np.ndarray) -> Any:
        bound = bound.astype(np.float32)
        return torch.from_numpy(bound).to(self.device) if self.tensor else bound


@config
class StickyActionsConfig:
    """Settings of `StickyActions`."""

    probability: float = 0.25  # chance, per column and step, that the last executed action is repeated

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability < 1.0:
            raise ConfigError(
                f"probability is {self.probability}; expected 0 ≤ probability < 1", path="probability"
            )


class StickyActions(EnvWrapper):
    """Repeats the last executed action with some probability (Machado et al. 2018, section 5).

    Never on the first step of an episode. The noise comes from an own generator, seeded by `reset(seed=…)`
    and saved.
    """

    Config = StickyActionsConfig
    where = "environment.wrappers.sticky_actions"

    def __init__(self, env: Env, cfg: StickyActionsConfig) -> None:
        super().__init__(env, cfg)
        self._numpy = np.random.default_rng(0)
        self._torch = torch.Generator(env.device)
        self._last: Tree | None = None
        ones = np.ones(env.num_envs, bool)
        self._first: Any = torch.from_numpy(ones).to(env.device) if env.tensor else ones

    def _map_action(self, action: Tree) -> Tree:
        if self._last is None:
            self._last = copy_tree(action)
            return action
        if self.tensor:
            draw = torch.rand(self.num_envs, generator=self._torch, device=self.device)
            new = (draw >= self.cfg.probability) | self._first
            tree_map(
                lambda last, leaf: last.copy_(torch.where(_over(new, leaf), leaf, last)), self._last, action
            )
        else:
            new = (self._numpy.random(self.num_envs) >= self.cfg.probability) | self._first
            tree_map(lambda last, leaf: np.copyto(last, leaf, where=_over(new, leaf)), self._last, action)
        return self._last

    def _step(self, step: Step, action: Tree) -> Step:
        self._first[...] = step.is_first
        return step

    def _reset(self, obs: Tree, seed: int | None, mask: Any | None) -> Tree:
        if seed is not None:
            own = Streams(seed).seed_for("sticky_actions")
            self._numpy = np.random.default_rng(own)
            self._torch.manual_seed(own)
        if mask is None:
            self._last = None  # else the first step would draw, or not, by what went before
        self._first[... if mask is None else mask] = True
        return obs

    def _state(self) -> dict[str, Any]:
        generator = self._torch.get_state() if self.tensor else self._numpy.bit_generator.state
        last = None if self._last is None else copy_tree(self._last)
        return {"generator": generator, "last": last, "first": copy_tree(self._first)}

    def _load_state(self, state: dict[str, Any]) -> None:
        if self.tensor:
            self._torch.set_state(state["generator"])
        else:
            self._numpy.bit_generator.state = state["generator"]
        self._last = None if state["last"] is None else copy_tree(state["last"])
        self._first[...] = state["first"]


def _boxes(space: Space[Any], where: str) -> dict[str, spaces.Box]:
    boxes = {path: leaf for path, leaf in leaf_spaces(space) if isinstance(leaf, spaces.Box)}
    if not boxes:
        raise ConfigError(
            f"the action space is {space}; expected a Box in it", path=where, hint="remove this wrapper"
        )
    return boxes


def _over(mask: Any, leaf: Any) -> Any:
    """`[B]` shaped so that it broadcasts over `[B, …]`."""
    return mask.reshape(-1, *[1] * (leaf.ndim - 1))
