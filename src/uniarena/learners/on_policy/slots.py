"""What fills the slots of the policy gradient: the advantage estimator and the minibatches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from uniarena.batch import Batch, Rollout, Tree, tree_map
from uniarena.learners.on_policy.config import PolicyGradientConfig
from uniarena.ops.returns import Trust, gae, monte_carlo, n_step, vtrace

log = logging.getLogger("uniarena")

Advantage = Callable[..., tuple[Tensor, Tensor]]
"""(reward, value, next_value, discount, ended, known=) → (advantage, target), all [T, B]. vtrace needs `log_ratio`."""


def build_advantage(cfg: PolicyGradientConfig) -> Advantage:
    """The estimator that `cfg.advantage` names, with its parameters filled in."""
    if cfg.advantage == "gae":
        return partial(gae, lam=cfg.gae_lambda)
    if cfg.advantage == "vtrace":
        return partial(vtrace, trust=Trust(cfg.gae_lambda, cfg.rho_bar, cfg.c_bar))
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

    def __call__(self, rows: Batch, states: Tree | None = None) -> Iterator[Batch]:
        """Minibatches of all epochs, one after the other; see `passes`."""
        return chain.from_iterable(self.passes(rows, states))

    def passes(self, rows: Batch, states: Tree | None = None) -> Iterator[Iterator[Batch]]:
        """The minibatches of each epoch from rows `[T, B]`.

        Args:
            states: of a policy with memory, as `states_before` gives them.

        Returns:
            an iterator over epochs, each one over its minibatches:
            valid rows `[N]`, evenly spread where they do not divide (said if the first ones do not). With `states`:
            time-major sequences `[L, N]` of about `batch_size` rows; rows that are not valid stay in place there,
            flagged by `valid`, since the state runs through them, and `state[0]` is the one before each sequence.
        """
        if states is not None:
            pieces = rows.sequences(min(self.length, len(rows)))
            return (self._sequences(pieces, states) for _ in range(self.epochs))
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

    def states_before(self, model: Any, rollout: Rollout) -> Tree | None:
        """The state before every sequence, `[B · ⌈T / L⌉, …]` in the order of `Batch.sequences`; None without memory.

        Those after the first one are what the model, as it is now, makes of the rows before them.
        """
        if "state" not in rollout.start:
            return None
        rows, state = rollout.rows.select("obs", "is_first"), rollout.start.state
        length, found = min(self.length, rollout.T), [state]
        with torch.no_grad():
            for start in range(0, rollout.T - length, length):
                part = rows[start : start + length]
                state = model(part.obs, state, part.is_first).state
                found.append(state)
        return found[0] if len(found) == 1 else tree_map(lambda *leaves: torch.cat(leaves), *found)

    def _sequences(self, pieces: Batch, states: Tree) -> Iterator[Batch]:
        length, count = pieces.shape
        columns = count if self.size is None else max(1, self.size // length)
        # Sequences lead while they are shuffled: [N, length], and each part goes back to time-major.
        swapped = Batch(
            (count,),
            {name: tree_map(lambda x: x.transpose(0, 1), pieces[name]) for name in pieces},
            state=states,
        )
        for part in swapped.minibatches(columns, 1, self.generator):
            fields = {
                name: tree_map(lambda x: x.transpose(0, 1), part[name]) for name in part if name != "state"
            }
            fields["state"] = tree_map(lambda x: x.expand(length, *x.shape), part.state)
            yield Batch((length, len(part)), fields)
