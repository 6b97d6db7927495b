"""A copy of everything that learning changes in an agent, made every iteration and therefore in few calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from uniarena.learners.base import Learner
from uniarena.nets.normalizer import RewardScaler
from uniarena.optim import Optimizer


class Copy:
    """Parameters, buffers, further state of modules, and the state of optimisers; no random streams.

    Args:
        modules: whose state it is: learner and bonuses.
        optimizers: all of theirs.
        scaler: of rewards, whose running returns are left alone: they belong to episodes that go on.
    """

    def __init__(
        self, modules: list[nn.Module], optimizers: list[Optimizer], scaler: RewardScaler | None
    ) -> None:
        scaled = [] if scaler is None else [scaler.moments]
        every = {id(x): x for part in (*modules, *scaled) for x in (*part.parameters(), *part.buffers())}
        self._live: list[Tensor] = list(every.values())
        self._kept = [x.detach().clone() for x in self._live]
        self._optimizers = optimizers
        # A learner's own extra state is that of its optimisers, progress and stream, unless a subclass adds to it.
        usual = (nn.Module.get_extra_state, Learner.get_extra_state)
        self._owners = [
            module
            for part in modules
            for module in part.modules()
            if type(module).get_extra_state not in usual
        ]
        self._extra: list[Any] = []
        self._states: list[dict[Tensor, dict[str, Any]]] = [{} for _ in optimizers]
        self._memories = [optimizer.memory for optimizer in optimizers]

    @torch.no_grad()
    def take(self) -> None:
        """Copy the present state."""
        kept, live = list(self._kept), list(self._live)
        for k, optimizer in enumerate(self._optimizers):
            self._memories[k] = optimizer.memory
            states, now = self._states[k], optimizer.torch.state
            if states.keys() != now.keys():
                states = self._states[k] = {parameter: _cloned(state) for parameter, state in now.items()}
            for parameter, state in now.items():
                own = states[parameter]
                for key, value in state.items():
                    if isinstance(value, Tensor):
                        kept.append(own[key])
                        live.append(value)
                    else:
                        own[key] = value
        torch._foreach_copy_(kept, live)
        self._extra = [_cloned(module.get_extra_state()) for module in self._owners]

    @torch.no_grad()
    def restore(self) -> None:
        """Put the copied state back, in place where others hold views of it."""
        torch._foreach_copy_(self._live, self._kept)
        for module, extra in zip(self._owners, self._extra, strict=True):
            module.set_extra_state(_cloned(extra))
        for optimizer, states, memory in zip(self._optimizers, self._states, self._memories, strict=True):
            optimizer.torch.state.clear()
            for parameter, state in states.items():
                optimizer.torch.state[parameter] = _cloned(state)
            optimizer.memory = memory


def _cloned(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.clone()
    if isinstance(tree, dict):
        return {key: _cloned(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_cloned(value) for value in tree)
    return tree
