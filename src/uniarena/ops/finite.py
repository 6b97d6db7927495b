"""Where the first NaN or infinity of a rollout is."""

from __future__ import annotations

from torch import Tensor

from uniarena.batch import Rollout, tree_paths


def first_non_finite(rollout: Rollout) -> str | None:
    """One sentence on the earliest value from the environment that is not finite; None where all are."""
    rows = rollout.rows
    leaves = [*tree_paths(rows.obs, "observation"), ("reward", rows.reward)]
    found = [(*_first(leaf, rows.valid), name, leaf) for name, leaf in leaves if leaf.is_floating_point()]
    found = [entry for entry in found if entry[0] >= 0]
    if not found:
        return _in_final(rollout)
    t, b, name, leaf = min(found, key=lambda entry: entry[0])
    bad = leaf[t, b].flatten()
    value = bad[~bad.isfinite()][0].item()
    return f"The {name} of environment {b} was {value} at step {t} of this rollout of {rollout.T}: look there first."


def _first(leaf: Tensor, valid: Tensor) -> tuple[int, int]:
    """Row and column of the first valid entry of `[T, B, …]` that is not finite; −1 where all are."""
    bad = ~leaf.isfinite().reshape(*valid.shape, -1).all(-1) & valid
    places = bad.nonzero()
    return (int(places[0, 0]), int(places[0, 1])) if len(places) else (-1, -1)


def _in_final(rollout: Rollout) -> str | None:
    if rollout.ended is None:
        return None
    for name, leaf in tree_paths(rollout.ended.obs, "final observation"):
        bad = leaf.is_floating_point() and ~leaf.isfinite().reshape(len(leaf), -1).all(-1)
        if isinstance(bad, Tensor) and bool(bad.any()):
            at = int(bad.nonzero()[0, 0])
            t, b = int(rollout.ended.t[at]), int(rollout.ended.b[at])
            return f"The {name} of environment {b} was not finite at step {t} of this rollout of {rollout.T}."
    return None
