"""What stands between an observation and a head's parameters: built-in towers, or a user's module, behind one
call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from uniarena.batch import Tree, tree_leaves, tree_map
from uniarena.config import ConfigError
from uniarena.nets.encoders import Encoder
from uniarena.nets.inference import eval_mode
from uniarena.nets.tower import Tower
from uniarena.nets.user_module import UserModule, column

FORMS = "parameters [N, P], (value [N, 1], parameters), or (parameters, value [N, 1] or None, state)"


class NetworkOutput(NamedTuple):
    """Head parameters `[..., P]`, value `[...]` where the network gives one, recurrent state `[N, ...]` or
    None.
    """

    params: Tensor
    value: Tensor | None
    state: Tree | None


class TowerNetwork(nn.Module):
    """Encoder and policy tower; a value tower on the same encoder shares its features, computed once."""

    def __init__(self, encoder: Encoder, actor: Tower, critic: Tower | None = None) -> None:
        super().__init__()
        self.encoder, self.actor, self.critic = encoder, actor, critic

    @property
    def gives_value(self) -> bool:
        """Whether the output holds a value."""
        return self.critic is not None

    def forward(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> NetworkOutput:
        features = self.encoder(obs)
        value = None if self.critic is None else self.critic(features).squeeze(-1)
        return NetworkOutput(self.actor(features), value, None)

    def params(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """Parameters alone: the value tower is not run."""
        return self.actor(self.encoder(obs)), None

    def value(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> Tensor:
        """Values alone: the policy tower is not run."""
        assert self.critic is not None
        return self.critic(self.encoder(obs)).squeeze(-1)

    def initial_state(self, count: int) -> None:
        """No memory."""
        return None


class UserNetwork(nn.Module):
    """A user's module that gives the parameters, and maybe the value and a recurrent state.

    A module with a method `initial_state(n)` is recurrent: it is called as `forward(obs [N, …], state,
    is_first [N])` once per step, and where `is_first` its state has been replaced by the initial one before
    the call. Sequences `[L, N, …]` are unrolled here, so that update and collection cannot differ in when
    they reset.

    Args:
        body: the module behind its adapter.
        where: config path of the section, for messages.

    Attributes:
        gives_value: the module returns a value.
        param_dim: width of the parameters that it returns.
    """

    def __init__(self, body: UserModule, example: Tree, where: str) -> None:
        super().__init__()
        self.body = body
        self.where = f"{where}.network"
        self.recurrent = callable(getattr(body.module, "initial_state", None))
        count = len(tree_leaves(example)[0])
        with torch.no_grad(), eval_mode(self):
            params, value, state = self._split(
                self._call(example, self.initial_state(count), self._zeros(example))
            )
            if params.shape[:-1] != (count,) or params.dim() != 2:
                raise self._wrong(f"parameters of shape {tuple(params.shape)} for {count} observations")
            if value is not None:
                column(value, (count,), self._name, self.where)
        if self.recurrent and state is None:
            raise self._wrong("no state, though it has initial_state(n)")
        self.gives_value = value is not None
        self.param_dim = int(params.shape[-1])

    def forward(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> NetworkOutput:
        if not self.recurrent:
            return self._output(self._call(obs, None, None), None)
        if is_first is not None and is_first.dim() == 2:
            return self._unroll(obs, state, is_first)
        return self._step(obs, state, is_first)

    def params(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, Tree | None]:
        out = self(obs, state, is_first)
        return out.params, out.state

    def value(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> Tensor:
        value: Tensor = self(obs, state, is_first).value
        return value

    def initial_state(self, count: int) -> Tree | None:
        """The state of `count` fresh columns, `[count, ...]`; None for a module without memory."""
        return self.body.module.initial_state(count) if self.recurrent else None  # type: ignore[operator]

    def _step(self, obs: Tree, state: Tree | None, is_first: Tensor | None) -> NetworkOutput:
        count = len(tree_leaves(obs)[0])
        initial = tree_map(lambda x: x.to(tree_leaves(obs)[0].device), self.initial_state(count))
        if state is None:
            state = initial
        elif is_first is not None:
            state = tree_map(
                lambda now, fresh: torch.where(_broadcast(is_first, now), fresh, now), state, initial
            )
        first = self._zeros(obs) if is_first is None else is_first
        return self._output(self._call(obs, state, first), count)

    def _unroll(self, obs: Tree, state: Tree | None, is_first: Tensor) -> NetworkOutput:
        outputs = []
        for t in range(len(is_first)):
            out = self._step(tree_map(lambda leaf, t=t: leaf[t], obs), state, is_first[t])
            state = out.state
            outputs.append(out)
        values = torch.stack([out.value for out in outputs]) if self.gives_value else None  # type: ignore[misc]
        return NetworkOutput(torch.stack([out.params for out in outputs]), values, state)

    def _call(self, obs: Tree, state: Tree | None, is_first: Tensor | None) -> Any:
        return self.body(obs, state, is_first) if self.recurrent else self.body(obs)

    def _output(self, raw: Any, count: int | None) -> NetworkOutput:
        params, value, state = self._split(raw)
        if value is not None:
            value = column(value, tuple(params.shape[:-1]), self._name, self.where)
        return NetworkOutput(params, value, state)

    def _split(self, raw: Any) -> tuple[Tensor, Tensor | None, Tree | None]:
        """The module's return value as (parameters, value, state)."""
        if isinstance(raw, Tensor):
            return raw, None, None
        if isinstance(raw, (tuple, list)) and len(raw) == 2:
            value, params = raw
            state = None
        elif isinstance(raw, (tuple, list)) and len(raw) == 3:
            params, value, state = raw
        else:
            size = f" of {len(raw)}" if isinstance(raw, (tuple, list)) else ""
            raise self._wrong(f"a {type(raw).__name__}{size}")
        if not isinstance(params, Tensor) or not (value is None or isinstance(value, Tensor)):
            raise self._wrong(f"({', '.join(type(part).__name__ for part in raw)})")
        return params, value, state

    def _wrong(self, got: str) -> ConfigError:
        return ConfigError(f"{self._name} gave {got}; expected {FORMS}.", path=self.where)

    @property
    def _name(self) -> str:
        return type(self.body.module).__qualname__

    def _zeros(self, obs: Tree) -> Tensor:
        leaf = tree_leaves(obs)[0]
        return torch.zeros(len(leaf), dtype=torch.bool, device=leaf.device)


def _broadcast(is_first: Tensor, like: Tensor) -> Tensor:
    return is_first.reshape(-1, *(1,) * (like.dim() - 1))
