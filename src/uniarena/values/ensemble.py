"""Q-functions of an ensemble: one encoder, and every member in one batched pass."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from uniarena.batch import Tree, tree_map
from uniarena.config import ConfigError
from uniarena.nets.encoders import Encoder
from uniarena.nets.ensemble import EnsembleMLP, frozen, orthogonal_members_
from uniarena.nets.leaves import example
from uniarena.nets.precision import widened
from uniarena.nets.tower import hidden_sizes, network_encoder
from uniarena.nets.user_module import UserModule, find_class
from uniarena.values.value import ValueConfig

WHERE = "agent.value"


@dataclass(frozen=True)
class EnsembleSpec:
    """What a learner asks of its critics.

    Attributes:
        members: E.
        outputs: numbers that each member gives per row: 1, M quantiles, or A discrete actions.
        layer_norm: in the hidden layers.
        dropout: of hidden units, while learning.
    """

    members: int = 2
    outputs: int = 1
    layer_norm: bool = False
    dropout: float = 0.0


class QEnsemble(nn.Module):
    """Q of E members.

    Args:
        encoder: (normalised) observations → features, shared by the members; None: the body does it.
        body: features with the action behind them → `[E, N, outputs]`.
        single: one output, which is squeezed.

    Attributes:
        members: E.
    """

    def __init__(self, encoder: Encoder | None, body: EnsembleMLP | UserCritics, single: bool) -> None:
        super().__init__()
        self.encoder, self.body, self.single = encoder, body, single
        self.members = body.members
        # Walking through the modules costs as much as a layer, and parameters stay the same objects.
        self._trainable = [p for p in self.parameters() if p.requires_grad]

    def forward(
        self,
        obs: Tree,
        action: Tensor | None = None,
        generator: torch.Generator | None = None,
        subset: Tensor | None = None,
    ) -> Tensor:
        """`[E, N]`, or `[E, N, outputs]` where there are several.

        Args:
            obs: observations `[N, …]` after normalisation.
            action: `[N, D]` scaled by `ActionScale`; None: the outputs are of all discrete actions.
            generator: source of dropout; None: nothing is dropped.
            subset: `[M]`, the members to evaluate.
        """
        if self.encoder is None:
            q = self.body(obs, action, subset)
        else:
            features = self.encoder(obs)
            x = features if action is None else torch.cat([features, action], dim=-1)
            q = self.body(x, generator, subset)
        return widened(q.squeeze(-1) if self.single else q)

    def frozen(self) -> AbstractContextManager[None]:
        """Inside, no gradient into the critics is computed: how a policy's loss calls them."""
        return frozen(self._trainable)


class UserCritics(nn.Module):
    """E copies of a user's module `forward(obs, action) → [N, 1]`, each initialised afresh, in one vmapped call.

    Attributes:
        members: E.
        stacked: the copies' parameters, each `[E, …]`.
    """

    def __init__(self, copies: list[UserModule]) -> None:
        super().__init__()
        self.members = len(copies)
        modules = [one.module for one in copies]
        parameters = [dict(module.named_parameters()) for module in modules]
        self._names = list(parameters[0])
        stacks = [torch.stack([own[name].detach() for own in parameters]) for name in self._names]
        self.stacked = nn.ParameterList([nn.Parameter(stack) for stack in stacks])
        self._buffers_of = [name.replace(".", "-") for name, _ in modules[0].named_buffers()]
        for name, (_, buffer) in zip(self._buffers_of, modules[0].named_buffers(), strict=True):
            self.register_buffer(name, buffer.clone())
        # only its code is used; in a tuple, because its parameters are not ours
        self._skeleton = (copy.deepcopy(modules[0]).to("meta"),)
        self.adapter = copies[0]
        self.adapter.module = nn.Identity()

    def forward(self, obs: Tree, action: Tensor | None = None, subset: Tensor | None = None) -> Tensor:
        """`[E, N, outputs]`; arguments as in `QEnsemble`."""
        inputs = (self.adapter.inputs(obs), *(() if action is None else (action,)))
        shared = {name.replace("-", "."): getattr(self, name) for name in self._buffers_of}
        stacked = {
            name: stack if subset is None else stack[subset]
            for name, stack in zip(self._names, self.stacked, strict=True)
        }

        def member(own: dict[str, Tensor]) -> Any:
            return torch.func.functional_call(self._skeleton[0], {**own, **shared}, inputs)

        q: Tensor = torch.func.vmap(member, randomness="different")(stacked)
        return q


def build_critics(
    observation_space: Space[Any],
    section: Mapping[str, Any],
    cfg: ValueConfig,
    spec: EnsembleSpec,
    action_dims: int | None,
    action_space: Space[Any],
) -> QEnsemble:
    """The critics of an off-policy learner.

    Args:
        section: `agent.value` as written; what a user's module takes as arguments.
        cfg: the same, parsed and completed.
        spec: what the learner asks for.
        action_dims: D of the scaled actions that critics are given; None: they give one output per action.
        action_space: offered to a user's module.

    Raises:
        ConfigError: a user's module that takes other arguments, gives another shape, or asks for options
            that only built-in critics have.
    """
    if cfg.built_in:
        encoder = network_encoder(observation_space, cfg, WHERE)
        body = EnsembleMLP(
            spec.members,
            encoder.out_dim + (action_dims or 0),
            spec.outputs,
            hidden_sizes(cfg, encoder),
            cfg.activation,
            spec.layer_norm,
            spec.dropout,
        )
        if cfg.orthogonal:
            orthogonal_members_(body)
        return QEnsemble(encoder, body, single=action_dims is not None and spec.outputs == 1)
    return _user_critics(observation_space, section, cfg, spec, action_dims, action_space)


def _user_critics(
    observation_space: Space[Any],
    section: Mapping[str, Any],
    cfg: ValueConfig,
    spec: EnsembleSpec,
    action_dims: int | None,
    action_space: Space[Any],
) -> QEnsemble:
    where = f"{WHERE}.network"
    if spec.layer_norm or spec.dropout > 0.0:
        raise ConfigError(
            "layer_norm and dropout are options of built-in critics; agent.value names a module of its own.",
            path="learner.layer_norm" if spec.layer_norm else "learner.dropout",
            hint="put such layers into your module, or remove the option.",
        )
    extra = {key: value for key, value in section.items() if key != "network"}
    offered = {"act_dim": spec.outputs if action_dims is None else action_dims, "action_space": action_space}
    cls = find_class(cfg.network, where)
    copies = [UserModule(cls, observation_space, offered, extra, WHERE) for _ in range(spec.members)]
    probe = tree_map(lambda leaf: leaf[:3], example(observation_space, 3))
    name = type(copies[0].module).__qualname__
    critics = UserCritics(copies)
    rest = () if action_dims is None else (torch.zeros(3, action_dims),)
    try:
        with torch.no_grad():
            q = critics(probe, *rest)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} cannot be called as a critic, forward(obs{', action' if rest else ''}) → [N, {spec.outputs}]: "
            f"{str(error).splitlines()[0]}",
            path=where,
        ) from error
    if tuple(q.shape) != (spec.members, 3, spec.outputs):
        raise ConfigError(
            f"{name} gave Q of shape {tuple(q.shape[1:])} for 3 rows; expected (3, {spec.outputs}).",
            path=where,
        )
    return QEnsemble(None, critics, single=action_dims is not None and spec.outputs == 1)
