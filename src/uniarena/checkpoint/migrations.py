"""Checkpoints of earlier formats, brought to today's one step at a time. Nothing on disk is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Document = dict[str, Any]


def migrate(
    document: Document, version: int, target: int, steps: Mapping[int, Callable[[Document], None]]
) -> None:
    """Change the content of a `state.json` in place.

    Args:
        document: the JSON data, with tags, before tensors are put in.
        version: the format it was written in; `target`: the one wanted.
        steps: version → what leads from it to the next.

    Raises:
        ValueError: there is no way from that version.
    """
    for step in range(version, target):
        if step not in steps:
            raise ValueError(f"format version {step} is too old for this version to read")
        steps[step](document)


def segment_rings(document: Document) -> None:
    """1 → 2: replay memory, which was one block, is a list of segments; an old block is the only one."""
    waiting: list[Any] = [document.get("buffer")]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict) and {"layout", "cursor", "flags", "finals", "frames"} <= set(node):
            _segment(node)
        elif isinstance(node, dict):
            waiting += node.values()


def _segment(ring: Document) -> None:
    block: Document = {
        name: ring.pop(name) for name in ("rows", "flags", "reward", "age", "until") if name in ring
    }
    frames, finals = ring.pop("frames"), ring.pop("finals")
    block |= {f"frames.{k}": entry for k, entry in enumerate(frames)}
    block |= {"finals.rows": finals["rows"]}
    block |= {f"finals.frames.{k}": entry for k, entry in enumerate(finals["frames"])}
    ring["segments"] = [block]


MIGRATIONS: dict[int, Callable[[Document], None]] = {1: segment_rings}
"""Format version → what leads to the next one."""
