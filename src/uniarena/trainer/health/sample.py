"""The newest rows of a run, wherever they lie: in the rollout, or in replay."""

from __future__ import annotations

from typing import Any, NamedTuple

from uniarena.batch import Batch, Tree, tree_leaves, tree_map
from uniarena.ops.returns import trace_ends

ROWS = 512
BYTES = 2**23
FEWEST = 64


class Newest(NamedTuple):
    """Consecutive rows.

    Attributes:
        rows: `[T, B]` of obs, action, reward, terminated, ended, valid; of rollouts all there is.
        on_policy: whether they are of the policy that was just updated.
        state: `[B, …]` before the first row, of policies with memory that were just updated.
    """

    rows: Batch
    on_policy: bool
    state: Tree | None = None


def newest(trainer: Any) -> Newest | None:
    """At most 512 of the newest rows, fewer where observations are large; None: there are none yet.

    With memory they are the first of the newest rollout: what was remembered before others is not kept.
    """
    rollout, recent = trainer.rollout, getattr(trainer.agent.buffer, "recent", None)
    if rollout is None:  # offline
        return None if recent is None else _offered(recent(ROWS))
    rows: Batch = rollout.rows
    width = sum(leaf[0, 0].numel() * leaf.element_size() for leaf in tree_leaves(rows.obs))
    steps = max(2, max(FEWEST, min(ROWS, BYTES // max(1, width))) // rows.shape[1])
    if recent is not None:
        return _offered(recent(steps))
    state = rollout.start.get("state")
    if rows.shape[0] > steps:
        rows = rows[-steps:] if state is None else rows[:steps]
    if rows.shape[0] < 2 or not bool(rows.valid.any()):
        return None
    return Newest(rows.replace(ended=trace_ends(rows)), True, state)


def _offered(rows: Batch) -> Newest | None:
    """Rows of replay or data, if there are enough."""
    return Newest(rows, False) if rows.shape[0] > 1 and bool(rows.valid.any()) else None


def flat(tree: Tree) -> Tree:
    """`[T, B, …]` → `[T·B, …]`."""
    return tree_map(lambda leaf: leaf.flatten(0, 1), tree)
