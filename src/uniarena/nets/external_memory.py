"""External memory: slots beside the network, read by attention.

What is written are the features of a row as they are; keys and values are made of them when they are read, by content
as in Graves et al. 2016 (Nature 538:471). So nothing has to be propagated back through the rows between writing and
reading, however many there are. Writing follows Pritzel et al. 2017 (arXiv:1703.01988), section 3.1: a row that is
there already is not written again, and the slot that was met least recently makes room. Deviation: one memory an
episode, of rows and not of returns.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from uniarena.batch import Tree
from uniarena.config import Between, ConfigError, config
from uniarena.nets.memory import Memory

Count = Annotated[int, Between(1)]


@config
class KeyValueConfig:
    """Settings of `KeyValueMemory`."""

    slots: Count = 32  # rows that are remembered
    hidden_size: Count = 64  # numbers read at every row, those of all heads together
    num_heads: Count = 4  # questions asked at every row; they share the hidden_size
    novelty: Annotated[float, Between(0)] = (
        0.1  # a row this near (root mean square) to one that is there is no new one
    )

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise ConfigError(
                f"got {self.num_heads} for a hidden_size of {self.hidden_size}; it must divide it.",
                path="num_heads",
            )


class KeyValueMemory(Memory):
    """The features of the row, and beside them what was read: `[B, in_dim + hidden_size]`.

    State: `slots [B, M, in_dim]`, and `age [B, M]`, rows since a slot was written or met again, 1e9 where it is empty.

    Args:
        cfg: an instance of `Config`.
        in_dim: width of the features.
    """

    Config: ClassVar[type] = KeyValueConfig

    def __init__(self, cfg: KeyValueConfig, in_dim: int) -> None:
        super().__init__()
        self.cfg, self.out_dim = cfg, in_dim + cfg.hidden_size
        self.in_dim, width = in_dim, cfg.hidden_size // cfg.num_heads
        self.query = nn.Linear(in_dim, cfg.hidden_size)
        bound = 1.0 / math.sqrt(in_dim)
        shape = (cfg.num_heads, width, in_dim)
        self.key, self.value = (nn.Parameter(torch.empty(shape).uniform_(-bound, bound)) for _ in range(2))

    def initial_state(self, count: int) -> dict[str, Tensor]:
        """Every slot is empty."""
        slots = self._zeros(count, self.cfg.slots, self.in_dim)
        return {"slots": slots, "age": self._zeros(count, self.cfg.slots) + EMPTY}

    def step(self, features: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        return self._read(features, state), self._write(features.detach(), state)

    def sequence(self, features: Tensor, state: Tree, is_first: Tensor) -> tuple[Tensor, Tree]:
        """What is written does not depend on what is read, so all rows are read at once."""
        seen = []
        for row, first in zip(features.detach(), is_first, strict=True):
            state = self.reset(state, first)
            seen.append(state)
            state = self._write(row, state)
        before = {name: torch.stack([each[name] for each in seen]) for name in ("slots", "age")}
        return self._read(features, before), state

    def _read(self, features: Tensor, state: Tree) -> Tensor:
        """`[…, F]` and slots `[…, M, F]` → `[…, F + hidden_size]`. A last place, of value 0, stands for nothing."""
        slots, empty = state["slots"], state["age"] >= EMPTY
        query = self.query(features).unflatten(-1, self.key.shape[:2])
        asked = torch.einsum("...hd,hdf->...hf", query, self.key) / math.sqrt(self.key.shape[1])
        scores = torch.einsum("...hf,...mf->...hm", asked, slots)
        scores = scores.masked_fill(empty.unsqueeze(-2), -torch.inf)
        weights = torch.cat([scores, torch.zeros_like(scores[..., :1])], dim=-1).softmax(-1)[..., :-1]
        found = torch.einsum("...hm,...mf->...hf", weights, slots)
        read = torch.einsum("...hf,hdf->...hd", found, self.value).flatten(-2)
        return torch.cat([features, read], dim=-1)

    @torch.no_grad()
    def _write(self, row: Tensor, state: Tree) -> Tree:
        """The state `[B, …]` after rows `[B, F]`."""
        slots, age = state["slots"], state["age"]
        distance = (slots - row[:, None]).square().mean(-1).masked_fill(age >= EMPTY, torch.inf)
        nearest, met = distance.min(1)
        place = torch.where(nearest <= self.cfg.novelty**2, met, age.argmax(1))
        chosen = nn.functional.one_hot(place, slots.shape[1]).bool()
        new = chosen & ~(nearest <= self.cfg.novelty**2)[:, None]
        older = torch.where(age >= EMPTY, age, age + 1.0)
        return {
            "slots": torch.where(new[..., None], row[:, None], slots),
            "age": torch.where(chosen, 0.0, older),
        }


EMPTY = 1e9
"""The age of a slot that nothing was written to."""
