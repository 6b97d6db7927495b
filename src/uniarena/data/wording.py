"""Counts in sentences."""

from __future__ import annotations


def counted(count: int, one: str, many: str) -> str:
    """`1 episode has`, `2,000 episodes have`: a count with the words that agree with it."""
    return f"{count:,} {one if count == 1 else many}"
