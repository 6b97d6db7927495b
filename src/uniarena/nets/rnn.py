"""Recurrent memory: LSTM and GRU, unrolled over whole episodes at a time.

A sequence is cut where episodes begin, and the pieces lie side by side in one padded batch, so that torch's fused
kernels see no resets. Measured on one thread, forward and backward of 16 rows of 16 columns and 64 units: the fused
LSTM takes 0.8 ms, a loop over cells 2.8 ms.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from uniarena.batch import Tree
from uniarena.config import Between, config
from uniarena.nets.memory import Memory

Count = Annotated[int, Between(1)]


@config
class RecurrentConfig:
    """Settings of `LSTM` and `GRU`."""

    hidden_size: Count = 128  # units of a layer
    num_layers: Count = 1  # layers, one on the other


class LSTM(Memory):
    """Long short-term memory: Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000.

    Weights are orthogonal, biases 0, that of the forget gate 1 (Jozefowicz et al. 2015), so that it begins by keeping.
    State: `h` and `c`, `[B, num_layers, hidden_size]`.

    Args:
        cfg: an instance of `Config`.
        in_dim: width of the features.
    """

    Config: ClassVar[type] = RecurrentConfig

    def __init__(self, cfg: RecurrentConfig, in_dim: int) -> None:
        super().__init__()
        self.out_dim = size = cfg.hidden_size
        widths = [in_dim, *[size] * (cfg.num_layers - 1)]
        self.layers = nn.ModuleList([nn.LSTM(width, size) for width in widths])
        for layer in self.layers:
            _orthogonal_(layer)
            nn.init.ones_(_weights(layer)[2].data[size : 2 * size])

    def initial_state(self, count: int) -> dict[str, Tensor]:
        """Zeros."""
        zeros = self._zeros(count, len(self.layers), self.out_dim)
        return {"h": zeros, "c": zeros}

    def step(self, features: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        hs, cs = [], []
        for layer, h, c in zip(self.layers, state["h"].unbind(1), state["c"].unbind(1), strict=True):
            features, cell = torch.lstm_cell(features, (h, c), *_weights(layer))
            hs.append(features)
            cs.append(cell)
        return features, {"h": torch.stack(hs, 1), "c": torch.stack(cs, 1)}

    def sequence(self, features: Tensor, state: Tree, is_first: Tensor) -> tuple[Tensor, Tree]:
        """As `Memory.sequence`; `c` of columns that begin an episode inside is given without a gradient."""
        pieces, hs, cs = cut(is_first), [], []
        for layer, h, c in zip(self.layers, state["h"].unbind(1), state["c"].unbind(1), strict=True):
            before = features
            start = pieces.begin(h)[None], pieces.begin(c)[None]
            out, (_, last) = layer(pieces.split(features), start)
            features = pieces.join(out)
            hs.append(features[-1])
            cs.append(self._last_cell(layer, before, last[0], pieces))
        return features, {"h": torch.stack(hs, 1), "c": torch.stack(cs, 1)}

    @staticmethod
    def _last_cell(layer: nn.Module, features: Tensor, last: Tensor, pieces: Pieces) -> Tensor:
        """`c` after the last row: where a column's last piece is shorter than the padded batch, it runs once more."""
        if pieces.rows is None:
            return last
        cell, columns = last[pieces.last_piece], pieces.late
        if columns is None:
            return cell
        with torch.no_grad():
            h = c = last.new_zeros(len(columns), last.shape[1])
            first = pieces.first[:, columns, None]
            x = features.detach()[:, columns]
            for t in range(pieces.latest, len(x)):
                h, c = (torch.where(first[t], 0.0, tensor) for tensor in (h, c))
                h, c = torch.lstm_cell(x[t], (h, c), *_weights(layer))
        return cell.index_copy(0, columns, c)


class GRU(Memory):
    """Gated recurrent unit: Cho et al. 2014 (arXiv:1406.1078). Weights are orthogonal, biases 0.

    State: `h`, `[B, num_layers, hidden_size]`.

    Args:
        cfg: an instance of `Config`.
        in_dim: width of the features.
    """

    Config: ClassVar[type] = RecurrentConfig

    def __init__(self, cfg: RecurrentConfig, in_dim: int) -> None:
        super().__init__()
        self.out_dim = size = cfg.hidden_size
        widths = [in_dim, *[size] * (cfg.num_layers - 1)]
        self.layers = nn.ModuleList([nn.GRU(width, size) for width in widths])
        for layer in self.layers:
            _orthogonal_(layer)

    def initial_state(self, count: int) -> dict[str, Tensor]:
        """Zeros."""
        return {"h": self._zeros(count, len(self.layers), self.out_dim)}

    def step(self, features: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        hs = []
        for layer, h in zip(self.layers, state["h"].unbind(1), strict=True):
            features = torch.gru_cell(features, h, *_weights(layer))
            hs.append(features)
        return features, {"h": torch.stack(hs, 1)}

    def sequence(self, features: Tensor, state: Tree, is_first: Tensor) -> tuple[Tensor, Tree]:
        pieces, hs = cut(is_first), []
        for layer, h in zip(self.layers, state["h"].unbind(1), strict=True):
            features = pieces.join(layer(pieces.split(features), pieces.begin(h)[None])[0])
            hs.append(features[-1])
        return features, {"h": torch.stack(hs, 1)}


class Pieces(NamedTuple):
    """Sequences `[T, B]` cut where episodes begin: P pieces of at most L rows, those of a column one after the other.

    Attributes:
        first: `[T, B]` bool, where episodes begin.
        rows: `[L·P]` where the rows of the padded batch come from, in `[T·B]`; None: nothing is cut.
        back: `[T·B]` where they go.
        column: `[P]` which column a piece is of; `fresh [P]`: it begins an episode.
        last_piece: `[B]` the last piece of each column.
        late: columns whose last piece is shorter than L; None: there are none.
        latest: the first row of the earliest of their last pieces.
    """

    first: Tensor
    rows: Tensor | None
    back: Tensor
    column: Tensor
    fresh: Tensor
    last_piece: Tensor
    late: Tensor | None
    latest: int

    def begin(self, state: Tensor) -> Tensor:
        """`[B, H]` before the sequences → `[P, H]` before the pieces."""
        own = state if self.rows is None else state[self.column]
        return torch.where(self.fresh[:, None], 0.0, own)

    def split(self, x: Tensor) -> Tensor:
        """`[T, B, F]` → `[L, P, F]`; behind its end a piece holds rows that come later."""
        if self.rows is None:
            return x
        return x.flatten(0, 1).index_select(0, self.rows).unflatten(0, (-1, len(self.column)))

    def join(self, x: Tensor) -> Tensor:
        """`[L, P, H]` → `[T, B, H]`."""
        if self.rows is None:
            return x
        return x.flatten(0, 1).index_select(0, self.back).unflatten(0, self.first.shape)


def cut(is_first: Tensor) -> Pieces:
    """The pieces of sequences, from `is_first [T, B]` bool."""
    steps, count = is_first.shape
    if not bool(is_first[1:].any()):
        none = torch.empty(0, dtype=torch.int64)
        return Pieces(is_first, None, none, none, is_first[0], none, None, 0)
    begins = is_first.t().clone()
    begins[:, 0] = True
    column, start = begins.nonzero(as_tuple=True)  # by column, and in it by time
    place = column * steps + start
    length = torch.diff(place, append=place.new_tensor([steps * count]))
    longest = int(length.max())
    step = torch.arange(longest, device=place.device)[:, None]
    rows = (start + step).clamp(max=steps - 1) * count + column
    piece = begins.flatten().cumsum(0).reshape(count, steps).t() - 1  # [T, B]
    offset = torch.arange(steps, device=place.device)[:, None] - start[piece]
    back = offset * len(column) + piece
    late = (length[piece[-1]] < longest).nonzero().squeeze(1)
    latest = int(start[piece[-1]][late].min()) if len(late) else 0
    return Pieces(
        is_first,
        rows.flatten(),
        back.flatten(),
        column,
        is_first[start, column],
        piece[-1],
        late if len(late) else None,
        latest,
    )


def _weights(layer: nn.Module) -> list[Tensor]:
    """Those of the only layer: of inputs, of the state, and both biases."""
    weights: list[Tensor] = layer._flat_weights  # type: ignore[assignment]
    return weights


def _orthogonal_(layer: nn.Module) -> None:
    """Orthogonal weights of every gate together and zero biases, in place."""
    for name, parameter in layer.named_parameters():
        nn.init.zeros_(parameter) if name.startswith("bias") else nn.init.orthogonal_(parameter)
