"""Gated transformer over a window of rows: GTrXL, Parisotto et al. 2020 (arXiv:1910.06764).

Layer normalisation stands before each part and a gate like a GRU's in place of each residual sum (sections 3.1 and 3.2,
equations 5 to 9). As in Transformer-XL (Dai et al. 2019, arXiv:1901.02860) a layer attends to what went into it in
earlier rows, which is kept and passes no gradient back. Distances are learned vectors added to the keys (Shaw et al.
2018, arXiv:1803.02155), where GTrXL has sinusoids.
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
class GatedTransformerConfig:
    """Settings of `GatedTransformer`."""

    window: Count = 32  # rows before the present one that a layer attends to
    hidden_size: Count = 64  # width of a row in the layers
    num_layers: Count = 2  # layers, one on the other; together they see num_layers · window rows back
    num_heads: Count = 4  # heads of attention, which share the width
    gate_bias: float = 2.0  # of the gates; the larger, the more a layer passes on at first what went into it

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise ConfigError(
                f"got {self.num_heads} for a hidden_size of {self.hidden_size}; it must divide it.",
                path="num_heads",
            )


class GatedTransformer(Memory):
    """Causal attention over the last rows of the episode.

    State: `past`, `[B, window, num_layers, hidden_size]`, what went into each layer, the newest row last; and `known`,
    `[B, window]`, 1 where a row of this episode is there.

    Args:
        cfg: an instance of `Config`.
        in_dim: width of the features.
    """

    Config: ClassVar[type] = GatedTransformerConfig
    stored: ClassVar[bool] = False

    def __init__(self, cfg: GatedTransformerConfig, in_dim: int) -> None:
        super().__init__()
        self.window, self.out_dim = cfg.window, cfg.hidden_size
        self.embed = nn.Linear(in_dim, cfg.hidden_size)
        self.layers = nn.ModuleList([Layer(cfg) for _ in range(cfg.num_layers)])

    def initial_state(self, count: int) -> dict[str, Tensor]:
        """Nothing is known."""
        past = self._zeros(count, self.window, len(self.layers), self.out_dim)
        return {"past": past, "known": self._zeros(count, self.window)}

    def step(self, features: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        nowhere = torch.zeros(1, len(features), dtype=torch.bool, device=features.device)
        out, state = self.sequence(features[None], state, nowhere)
        return out[0], state

    def sequence(self, features: Tensor, state: Tree, is_first: Tensor) -> tuple[Tensor, Tree]:
        """All rows at once: each attends to those of its episode that lie within the window."""
        visible, distance = self._visible(state["known"], is_first)
        x = self.embed(features.transpose(0, 1))  # [B, T, D]
        past, into = state["past"].detach(), []
        for index, layer in enumerate(self.layers):
            into.append(x)
            x = layer(x, past[:, :, index], visible, distance)
        rows = torch.cat([past, torch.stack(into, dim=2).detach()], dim=1)[:, -self.window :]
        known = self._known(state["known"], is_first)
        rows = torch.where(known[:, :, None, None] > 0, rows, 0.0)
        return x.transpose(0, 1), {"past": rows, "known": known}

    def _visible(self, known: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """`[B, T, W + T]` bool: which rows each row attends to; `[T, W + T]`: how far back they are, at most W."""
        steps, window = len(is_first), self.window
        episode = is_first.t().cumsum(1)  # [B, T]; 0: that of the state
        before = (known[:, None, :] > 0) & (episode[:, :, None] == 0)
        within = episode[:, :, None] == episode[:, None, :]
        place = torch.arange(steps, device=known.device)
        back = place[:, None] + window - torch.arange(window + steps, device=known.device)
        near = (back >= 0) & (back <= window)
        return torch.cat([before, within], dim=2) & near, back.clamp(0, window)

    def _known(self, known: Tensor, is_first: Tensor) -> Tensor:
        """`[B, window]` after the last row: rows since its episode began."""
        steps = len(is_first)
        episode = is_first.t().cumsum(1)
        own = (episode == episode[:, -1:]).to(known.dtype)
        before = torch.where(episode[:, -1:] == 0, known, 0.0)
        return torch.cat([before, own], dim=1)[:, steps:]


class Layer(nn.Module):
    """Attention and a small MLP, each behind a layer normalisation and in front of a gate.

    Args:
        cfg: widths.
    """

    def __init__(self, cfg: GatedTransformerConfig) -> None:
        super().__init__()
        width, self.heads = cfg.hidden_size, cfg.num_heads
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.output = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.distance = nn.Parameter(torch.zeros(cfg.window + 1, self.heads, width // self.heads))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.gate, self.mlp_gate = Gate(width, cfg.gate_bias), Gate(width, cfg.gate_bias)
        nn.init.normal_(self.distance, std=0.02)

    def forward(self, x: Tensor, past: Tensor, visible: Tensor, distance: Tensor) -> Tensor:
        """`x [B, T, D]` and what went into this layer before, `[B, W, D]` → `[B, T, D]`."""
        heads = (self.heads, -1)
        context = self.norm(torch.cat([past, x], dim=1))
        query = self.query(context[:, past.shape[1] :]).unflatten(-1, heads)
        key, value = (part.unflatten(-1, heads) for part in self.key_value(context).chunk(2, dim=-1))
        scores = torch.einsum("bthd,bshd->bhts", query, key)
        by_distance = torch.einsum("bthd,whd->bhtw", query, self.distance)
        index = distance.expand(*scores.shape[:2], *distance.shape)
        scores = (scores + by_distance.gather(-1, index)) / math.sqrt(key.shape[-1])
        weights = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)
        value = value.nan_to_num(0.0, 0.0, 0.0)  # 0 · NaN is NaN: of another episode, it must not be heard of
        heard = self.output(torch.einsum("bhts,bshd->bthd", weights, value).flatten(-2))
        x = self.gate(x, torch.relu(heard))
        return self.mlp_gate(x, torch.relu(self.mlp(self.mlp_norm(x))))


class Gate(nn.Module):
    """g(x, y) = (1 − z)·x + z·h, like a GRU's: equations 6 to 9.

    Args:
        width: of x and y.
        bias: subtracted inside of z, so that the gate begins nearly closed.
    """

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.of_input = nn.Linear(width, 2 * width, bias=False)
        self.of_output = nn.Linear(width, 3 * width, bias=False)
        self.candidate = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """`x`, `y` `[…, D]` → `[…, D]`: x, as far as the gate is closed."""
        r_y, z_y, h_y = self.of_output(y).chunk(3, dim=-1)
        r_x, z_x = self.of_input(x).chunk(2, dim=-1)
        z = torch.sigmoid(z_y + z_x - self.bias)
        h = torch.tanh(h_y + self.candidate(torch.sigmoid(r_y + r_x) * x))
        return (1.0 - z) * x + z * h
