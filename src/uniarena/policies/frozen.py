"""The policy while it acts: no gradients, evaluation mode, as few operations as the network allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from uniarena.batch import Batch, Tree, tree_leaves, tree_map
from uniarena.envs.spaces import MASK
from uniarena.nets.encoders import Encoder
from uniarena.nets.flat_image import FlatImage, flatten_image
from uniarena.nets.inference import FlatMLP, eval_mode, flatten
from uniarena.nets.leaves import Keys, leaf_at
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.policies.heads import Head
from uniarena.policies.memory_network import MemoryNetwork
from uniarena.policies.network import TowerNetwork, UserNetwork
from uniarena.policies.noise import Generator

MAX_ROWS = 4096
"""Rows of one pass of `log_prob`, so that annotating a long chunk of images needs no more memory than a
minibatch.
"""


class FrozenPolicy:
    """Acts on live parameters: an optimiser's step is seen by the next call. Copy it (`copy.deepcopy`) to
    keep a version.

    Call it under `torch.inference_mode()` or `torch.no_grad()`. Observations are trees of `[B, ...]` tensors,
    raw; `state` and `is_first [B]` are for policies with memory.

    Args:
        network, head, normalizer: of the policy.
    """

    def __init__(
        self,
        network: TowerNetwork | MemoryNetwork | UserNetwork,
        head: Head,
        normalizer: ObservationNormalizer | None,
    ) -> None:
        self.network, self.head, self.normalizer = network, head, normalizer
        self._flat: FlatMLP | None = None
        self._input: Keys | None = None  # the one leaf that the flat form takes, normaliser included
        self._encoder: Encoder | None = None  # or what comes before it
        self._image: FlatImage | None = None  # and its own flat form
        self._output: nn.Linear | None = None  # the layer after it, where its own output is wanted too
        if isinstance(network, TowerNetwork):
            actor = network.actor
            layers = actor.torso if actor.with_latent else nn.Sequential(actor.torso, actor.output)
            self._output = actor.output if actor.with_latent else None
            if network.encoder.identity:
                self._flat = flatten(layers, normalizer)
                self._input = network.encoder.keys[0]
            else:
                self._flat, self._encoder = flatten(layers), network.encoder
                self._image = flatten_image(network.encoder)

    def noise(self, steps: int, columns: int, generator: Generator) -> Tree | None:
        """All the noise of a chunk in one draw, `[T, B, ...]`; None where its size is not fixed."""
        return self.head.noise(steps, columns, generator)

    def sample(
        self,
        obs: Tree,
        state: Tree | None = None,
        is_first: Tensor | None = None,
        noise: Tree | None = None,
        generator: Generator = None,
    ) -> tuple[Tree, Tree | None]:
        """An action `[B, ...]` and the next state; randomness from one step of `noise`, else from
        `generator`.
        """
        params, state = self.params(obs, state, is_first)
        return self.head.sample(params, noise, _mask(obs), generator), state

    def sample_keeping(
        self,
        kept: list[Any],
        obs: Tree,
        state: Tree | None,
        is_first: Tensor | None,
        noise: Tree | None,
        generator: Generator,
    ) -> tuple[Tree, Tree | None]:
        """`sample`; a copy of the head's parameters `[B, P]` goes into `kept`, for `kept_log_prob`."""
        params, state = self.params(obs, state, is_first)
        kept.append(params.clone())  # a module may give the same memory every time
        return self.head.sample(params, noise, _mask(obs), generator), state

    def on_arrays(self, rows: int, kept: list[Any] | None = None) -> Callable[[Any, Any], Any] | None:
        """`sample` on arrays: (`rows` observations, a step of noise) → actions in new memory; None where it is not that
        simple. Valid until parameters are given other memory.
        """
        pick, flat = getattr(self.head, "pick_array", None), self._flat
        more = self._input or self._encoder is not None or self._output is not None
        if type(self) is not FrozenPolicy or flat is None or pick is None or more:
            return None
        run = flat.arrays(rows)
        if run is None or kept is None:
            return None if run is None else lambda obs, noise: pick(run(obs), noise)

        def sample(obs: Any, noise: Any) -> Any:
            params = run(obs)
            kept.append(params.copy())
            return pick(params, noise)

        return sample

    def mode(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tree, Tree | None]:
        """The deterministic action `[B, ...]` and the next state."""
        params, state = self.params(obs, state, is_first)
        return self.head.mode(params, _mask(obs)), state

    @torch.no_grad()
    def log_prob(
        self, obs: Tree, action: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> Tensor:
        """Log-probs of actions.

        Args:
            obs, action: `[N, …]`, each row a step of its own from its own state; or with `is_first [T, B]` sequences
                `[T, B, …]` that begin at `state [B, …]`.

        Returns:
            `[N]` or `[T, B]`.
        """
        parts = []
        flat = self._flat is not None and is_first is None
        shape = (len(tree_leaves(action)[0]),) if is_first is None else is_first.shape
        width = 1 if len(shape) == 1 else shape[1]
        with eval_mode(self.network):
            for start in range(0, shape[0], max(1, MAX_ROWS // width)):
                rows = slice(start, start + max(1, MAX_ROWS // width))
                part, first = _rows(obs, rows), _rows(is_first, rows)
                before = state if len(shape) > 1 else _rows(state, rows)
                params, after = (self.params if flat else self._plainly)(part, before, first)
                state = after if len(shape) > 1 else state
                parts.append(self.head.dist(params, _mask(part)).log_prob(_rows(action, rows)))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @torch.no_grad()
    def kept_log_prob(self, kept: list[Any], rows: Batch) -> Tensor:
        """Log-probs `[T, B]` of the actions of rows that were sampled one by one, from what was kept of each."""
        flat = rows.flatten()
        arrays = isinstance(kept[0], np.ndarray)
        params = torch.from_numpy(np.concatenate(kept)) if arrays else torch.cat(kept)
        log_prob: Tensor = self.head.dist(params, _mask(flat.obs)).log_prob(flat.action)
        return log_prob.reshape(rows.shape)

    def initial_state(self, count: int) -> Tree | None:
        """The recurrent state of `count` fresh columns; None without memory."""
        return self.network.initial_state(count)

    def params(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, Tree | None]:
        """The head's parameters `[B, P]` and the next state."""
        flat = self._flat
        if flat is None:
            return self._slow(obs, state, is_first)
        if self._encoder is None:
            x = leaf_at(obs, self._input) if self._input else obs
            if x.dtype is not torch.float32:
                x = x.float()
        else:
            inputs = obs if self.normalizer is None else self.normalizer(obs)
            if self._image is not None:
                x = self._image(leaf_at(inputs, self._image.keys))
            else:
                with eval_mode(self._encoder):
                    x = self._encoder(inputs)
        out = flat(x)
        if self._output is not None:
            out = torch.cat([self._output(out), out], dim=-1)
        return out, None

    def _slow(self, obs: Tree, state: Tree | None, is_first: Tensor | None) -> tuple[Tensor, Tree | None]:
        with eval_mode(self.network):
            return self._plainly(obs, state, is_first)

    def _plainly(self, obs: Tree, state: Tree | None, is_first: Tensor | None) -> tuple[Tensor, Tree | None]:
        return self.network.params(obs if self.normalizer is None else self.normalizer(obs), state, is_first)


def _mask(obs: Tree) -> Tensor | None:
    """The legal actions that an observation tells of."""
    return obs.get(MASK) if isinstance(obs, dict) else None


def _rows(tree: Tree | None, rows: slice) -> Tree | None:
    return None if tree is None else tree_map(lambda leaf: leaf[rows], tree)
