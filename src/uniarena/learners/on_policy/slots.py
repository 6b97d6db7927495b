"""What fills the slots of the policy gradient: the advantage estimator and the minibatches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from uniarena.batch import Batch, tree_map
from uniarena.learners.on_policy.config import PolicyGradientConfig
from uniarena.ops.returns import gae, monte_carlo, n_step

log = logging.getLogger("uniarena")

Advantage = Callable[..., tuple[Tensor, Tensor]]
"""(reward, value, next_value, discount, ended, *, known) → (advantage, target), all [T, B]."""


def build_advantage(cfg: PolicyGradientConfig) -> Advantage:
    """The estimator that `cfg.advantage` names, with its parameters filled in."""
    if cfg.advantage == "gae":
        return partial(gae, lam=cfg.gae_lambda)
    if cfg.advantage == "n_step":
        return partial(n_step, n=cfg.bootstrap_steps)
    return monte_carlo


class Minibatches:
    """Cuts the rows of a rollout into shuffled minibatches, as `batch_size` and `n_epochs` say.

    Args:
        cfg: see `PolicyGradientConfig`.
        generator: of the shuffles.
    """

    def __init__(self, cfg: PolicyGradientConfig, generator: torch.Generator) -> None:
        self.size, self.epochs, self.length = cfg.batch_size, cfg.n_epochs, cfg.sequence_length
        self.generator = generator
        self._told = False

    def __call__(self, rows: Batch) -> Iterator[Batch]:
        """Minibatches of all epochs, one after the other; see `passes`."""
        return chain.from_iterable(self.passes(rows))

    def passes(self, rows: Batch) -> Iterator[Iterator[Batch]]:
        """The minibatches of each epoch from rows `[T, B]`.

        Returns:
            an iterator over epochs, each one over its minibatches:
            valid rows `[N]`, evenly spread where they do not divide (said if the first ones do not). Where rows hold a
            recurrent `state`: time-major sequences `[L, N]` of about `batch_size` rows; rows that are not valid stay in
            place there, flagged by `valid`, since the state runs through them, and `state[0]` is the one that
            was recorded before each sequence.
        """
        if "state" in rows:
            pieces = rows.sequences(min(self.length, len(rows)))
            return (self._sequences(pieces) for _ in range(self.epochs))
        rows = rows.select_valid().without("valid", "is_first")
        count = len(rows)
        size = self.size or max(1, count)
        first, self._told = not self._told, True
        if first and count > size and count % size:  # later rollouts may be odd only because the run ends
            parts = -(-count // size)
            log.warning(
                "%d rows do not divide into minibatches of %d (learner.batch_size), so %d minibatches of %d to %d rows "
                "are used.",
                *(count, size, parts, count // parts, -(-count // parts)),
            )
        return (rows.minibatches(size, 1, self.generator) for _ in range(self.epochs))

    def _sequences(self, pieces: Batch) -> Iterator[Batch]:
        length, count = pieces.shape
        columns = count if self.size is None else max(1, self.size // length)
        # Sequences lead while they are shuffled: [N, length], and each part goes back to time-major.
        swapped = Batch(
            (count,), {name: tree_map(lambda x: x.transpose(0, 1), pieces[name]) for name in pieces}
        )
        for part in swapped.minibatches(columns, 1, self.generator):
            fields = {name: tree_map(lambda x: x.transpose(0, 1), part[name]) for name in part}
            yield Batch((length, len(part)), fields)
