"""Running statistics that scale observations and rewards; part of the agent, saved with it.

Moments are float64 and merged pairwise (Chan, Golub & LeVeque 1979), so neither long runs nor large offsets
lose digits. Everything stays on its device and nothing synchronises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from uniarena.batch import Batch, Tree
from uniarena.config import ConfigError
from uniarena.envs.spaces import describe
from uniarena.nets.leaves import Keys, dotted, leaf_at, leaves

ENOUGH = 256
"""Rows that say something of a mean and a deviation."""


class Moments(nn.Module):
    """Count, mean and sum of squared deviations of D numbers, each in float64.

    Args:
        size: D.
    """

    count: Tensor
    mean: Tensor
    m2: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(size, dtype=torch.float64))

    def add(self, x: Tensor, valid: Tensor) -> None:
        """Count the rows of `x [N, D]` for which `valid [N]` is true and all numbers are finite."""
        x = x.double()
        valid = valid & x.isfinite().all(dim=1)
        weight = valid.double().unsqueeze(1)
        x = torch.where(valid.unsqueeze(1), x, 0.0)
        count = weight.sum()
        mean = x.sum(0) / count.clamp(min=1.0)
        m2 = ((x - mean).square() * weight).sum(0)
        self._merge(count, mean, m2)

    def absorb(self, other: Moments) -> None:
        """Merge `other` into these moments and empty it."""
        self._merge(other.count, other.mean, other.m2)
        for buffer in (other.count, other.mean, other.m2):
            buffer.zero_()

    def fade(self, other: Moments, decay: float) -> None:
        """Keep `decay` of these moments, take the rest from `other`, and empty it; the first ones are taken whole."""
        if float(other.count) == 0.0:
            return
        keep = decay if float(self.count) > 0.0 else 0.0
        delta, total = other.mean - self.mean, self.count + other.count
        variance = keep * self.variance() + (1.0 - keep) * other.variance()
        variance += keep * (1.0 - keep) * delta.square()
        self.mean.add_(delta * (1.0 - keep))
        self.m2.copy_(variance * total)
        self.count.copy_(total)
        for buffer in (other.count, other.mean, other.m2):
            buffer.zero_()

    def _merge(self, count: Tensor, mean: Tensor, m2: Tensor) -> None:
        total = self.count + count
        share = count / total.clamp(min=1.0)
        delta = mean - self.mean
        self.m2.add_(m2 + delta.square() * self.count * share)
        self.mean.add_(delta * share)
        self.count.copy_(total)

    def variance(self) -> Tensor:
        """Population variance `[D]`; 1 where nothing was counted yet."""
        return torch.where(self.count > 0, self.m2 / self.count.clamp(min=1.0), 1.0)


class ObservationNormalizer(nn.Module):
    """(obs − mean) / sqrt(variance + epsilon), clipped, for every float Box of an observation space, number
    by number.

    Discrete, integer and image leaves and action masks pass unchanged. `forward` uses the statistics of the
    last `merge`; `accumulate` only gathers. Nothing counted yet means mean 0 and variance 1.

    Args:
        space: the observation space.
        clip: bound of the result's magnitude.
        epsilon: added to the variance.
        skip: dotted paths of float leaves to leave alone, such as images (`encoders.image_leaves`).
        statistics: `welford`, of all rows so far; `ema`, moving averages.
        decay: of `ema`: share that each `merge` keeps; rows are gathered until there are 256.
        outlier: numbers further than this many deviations from the mean count as that far, once 256 rows were counted;
            None: as they are. Winsorising, Dixon 1960 (Ann. Math. Statist. 31): one wild episode widens the statistics
            by a bounded factor, and lasting change moves them within a few merges.

    Raises:
        ConfigError: no leaf is left to normalise.
    """

    centre: Tensor
    inv_std: Tensor

    def __init__(
        self,
        space: Space[Any],
        clip: float = 10.0,
        epsilon: float = 1e-8,
        skip: Sequence[str] = (),
        *,
        statistics: Literal["welford", "ema"] = "welford",
        decay: float = 0.99,
        outlier: float | None = None,
    ) -> None:
        super().__init__()
        self.clip, self.epsilon = float(clip), float(epsilon)
        self.fading, self.decay, self.outlier = statistics == "ema", float(decay), outlier
        self._slices: dict[Keys, tuple[int, int]] = {}
        size = 0
        for keys, leaf in leaves(space):
            if isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f" and dotted(keys) not in skip:
                width = spaces.utils.flatdim(leaf)
                if width:
                    self._slices[keys] = (size, size + width)
                    size += width
        if not self._slices:
            raise ConfigError(
                f"no float Box in the observations {describe(space)} to normalise; encoders scale images.",
                path="environment.wrappers",
                hint="remove normalize_observation.",
            )
        self.moments, self.pending = Moments(size), Moments(size)
        # what forward uses: float32, moved only by merge, in place, so that views of them stay right
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("inv_std", torch.full((size,), 1.0 / (1.0 + self.epsilon) ** 0.5))

    def forward(self, obs: Tree) -> Tree:
        """A tree `[..., *leaf shape]` → the same tree with its float leaves normalised, as float32."""
        return self._walk(obs, ())

    def _walk(self, tree: Tree, keys: Keys) -> Tree:
        if isinstance(tree, dict):
            return {key: self._walk(child, (*keys, key)) for key, child in tree.items()}
        if isinstance(tree, tuple):
            return tuple(self._walk(child, (*keys, index)) for index, child in enumerate(tree))
        if keys not in self._slices:
            return tree
        start, stop = self._slices[keys]
        shape = tree.shape
        wide = tree.float().reshape(-1, stop - start)
        scaled = ((wide - self.centre[start:stop]) * self.inv_std[start:stop]).clamp(-self.clip, self.clip)
        return scaled.reshape(shape)

    @torch.no_grad()
    def accumulate(self, obs: Tree, valid: Tensor) -> None:
        """Gather the moments of the observations `[..., *leaf shape]` whose `valid [...]` is true, until
        `merge`.
        """
        rows = [
            leaf_at(obs, keys).reshape(valid.numel(), stop - start)
            for keys, (start, stop) in self._slices.items()
        ]
        x = rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
        if self.outlier is not None and float(self.moments.count) >= ENOUGH:
            reach = self.outlier / self.inv_std
            x = torch.where(x.isfinite(), x.float().clamp(self.centre - reach, self.centre + reach), x)
        self.pending.add(x, valid.reshape(-1))

    @torch.no_grad()
    def merge(self) -> None:
        """Let what was gathered since the last call count."""
        if not self.fading:
            self.moments.absorb(self.pending)
        elif float(self.pending.count) >= ENOUGH:
            self.moments.fade(self.pending, self.decay)
        else:
            return
        self.centre.copy_(self.moments.mean)
        self.inv_std.copy_((self.moments.variance() + self.epsilon).rsqrt())


class RewardScaler(nn.Module):
    """reward / sqrt(variance + epsilon) of the running discounted return of each column; never centred,
    clipped.

    Engstrom et al. 2020 (arXiv:2005.12729), algorithm 1. Not centred, because an offset changes what is
    optimal.

    Args:
        columns: B of the rollouts.
        gamma: the discount.
        clip: bound of the scaled reward's magnitude.
        epsilon: added to the variance.
    """

    returns: Tensor

    def __init__(self, columns: int, gamma: float, clip: float = 10.0, epsilon: float = 1e-8) -> None:
        super().__init__()
        self.gamma, self.clip, self.epsilon = float(gamma), float(clip), float(epsilon)
        self.moments = Moments(1)
        self.register_buffer("returns", torch.zeros(columns, dtype=torch.float64))

    @torch.no_grad()
    def update(self, rows: Batch) -> None:
        """Count the discounted returns of consecutive rows `[T, B]` (reward, terminated, truncated, valid).

        A column's return starts again at 0 after a row that ended; rows that are not valid are not counted.

        Raises:
            ValueError: the rows have another number of columns.
        """
        if rows.shape[1] != len(self.returns):
            raise ValueError(f"rows of {rows.shape[1]} columns for a reward scaler of {len(self.returns)}.")
        reward = torch.where(rows.valid, rows.reward, 0.0).double()
        keep = torch.where(rows.terminated | rows.truncated, 0.0, self.gamma).double()
        history = torch.empty_like(reward)
        carried = self.returns
        for now, factor, out in zip(reward.unbind(0), keep.unbind(0), history.unbind(0), strict=True):
            torch.add(now, carried, out=out)
            carried = out * factor
        self.returns.copy_(carried)
        self.moments.add(history.reshape(-1, 1), rows.valid.reshape(-1))

    def scale(self, reward: Tensor) -> Tensor:
        """Rewards of any shape, scaled and clipped."""
        inv_std = (self.moments.variance() + self.epsilon).rsqrt().to(reward.dtype)
        return (reward * inv_std).clamp(-self.clip, self.clip)
