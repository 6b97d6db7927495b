"""State values of many rows without gradients: what targets are made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from uniarena.batch import Tree
from uniarena.nets.encoders import Encoder
from uniarena.nets.inference import flatten, hooks_of
from uniarena.nets.leaves import Keys, leaf_at
from uniarena.nets.tower import Tower
from uniarena.policies.network import TowerNetwork
from uniarena.values.model import Model


class FrozenValue:
    """`model.value` on the live parameters, in fewer and quicker calls where the value is a plain MLP on one flat
    observation. Whatever else it is, and where somebody hooks into it, the model is asked.

    Args:
        model: has `value(obs [N, …], …)` → `[N]`; in evaluation mode when this is called.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._tower, self._flat = _plain_tower(model), None
        self._keys: Keys = ()
        if self._tower is not None:
            encoder, tower = self._tower
            self._keys, self._flat = encoder.keys[0], flatten(tower.torso, model.normalizer)
            self._hooks = hooks_of(model.value_net or model.policy.network)

    @torch.no_grad()
    def __call__(self, obs: Tree, *memory: Any) -> Tensor:
        """Values `[N]`; `memory` is passed on to a model that has some."""
        exchanged = "value" in vars(self._model)  # by somebody who gives this one model another value
        if self._flat is None or self._tower is None or memory or exchanged or any(self._hooks):
            value: Tensor = self._model.value(obs, *memory)
            return value
        x = leaf_at(obs, self._keys)
        out: Tensor = self._tower[1].output(self._flat(x if x.dtype is torch.float32 else x.float()))
        return out.squeeze(-1)


def _plain_tower(model: Any) -> tuple[Encoder, Tower] | None:
    if type(model) is not Model:
        return None
    network, net = model.policy.network, model.value_net
    encoder: Any = None
    tower: Any = None
    if net is None and type(network) is TowerNetwork:
        encoder, tower = network.encoder, network.critic
    elif net is not None and net.squeeze and type(net.body) is torch.nn.Sequential:
        encoder, tower = net.body
    plain = type(encoder) is Encoder and type(tower) is Tower
    return (encoder, tower) if plain and encoder.identity and not tower.with_latent else None
