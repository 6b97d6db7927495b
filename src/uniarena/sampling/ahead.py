"""What a sampler that works ahead is told of the chunk to come."""

from __future__ import annotations

from typing import NamedTuple


class Ahead(NamedTuple):
    """The chunk after the one that is asked for.

    Attributes:
        steps: env steps (rows × B) of a whole one.
        total: env steps at which the run ends; the chunk is shortened to what is left by then.
    """

    steps: int
    total: int
