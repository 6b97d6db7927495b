"""The category of our own notices: something works, but not quite as one might expect."""

from __future__ import annotations

import multiprocessing
import warnings


class UniArenaNotice(UserWarning):
    """Said once through `warnings`: a stated approximation, a mapped name, a part that was left out."""


def notice(message: str) -> None:
    """Give a notice, in the main process only: worker processes would repeat what it has said."""
    if multiprocessing.parent_process() is None:
        warnings.warn(message, UniArenaNotice, stacklevel=3)
