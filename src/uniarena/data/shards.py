"""How many records the files of a TFDS dataset should hold, as its `dataset_info.json` says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from uniarena.data.errors import DataError
from uniarena.data.source import count

SHARD = re.compile(r"-(\d+)-of-(\d+)$")
"""How the name of a file ends that is one of several."""


def check_counts(info: dict[str, Any], where: Path, there: dict[Path, int], whole: bool) -> list[str]:
    """Compare the records of each file with what TFDS says of it; what differs and lost nothing is noted.

    Args:
        info: of `dataset_info.json`, which lies at `where`.
        there: file → its records.
        whole: all files of the dataset were read.
    """
    said, seen = _said(info, where), set()
    notes: list[str] = []
    for file, found in there.items():
        shard = SHARD.search(file.name)
        name = file.name[: shard.start()].rpartition(".")[0].rpartition("-")[2] if shard else ""
        lengths = said.get(name, [])
        if shard is None or int(shard[2]) != len(lengths) or int(shard[1]) >= len(lengths):
            continue
        seen.add(name)
        notes += _compared(lengths[int(shard[1])], found, file, where)
    if said and whole and not seen:
        notes += _compared(
            sum(length for lengths in said.values() for length in lengths),
            sum(there.values()),
            where.parent,
            where,
        )
    elif whole:
        notes += [
            f"There are no files of the split {name}, of which {where.name} says {sum(lengths):,} records."
            for name, lengths in said.items()
            if name not in seen and any(lengths)
        ]
    return notes


def _compared(said: int, found: int, place: Path, where: Path) -> list[str]:
    if found < said:
        raise DataError(
            f"holds {found:,} records, and {where.name} says {said:,}: {said - found:,} episodes are missing",
            place,
            f"fetch or copy it again; if these are all, correct shardLengths in {where.name}",
        )
    return (
        [f"{where.name} says {said:,} records of {place.name}; {found:,} are there."] if found > said else []
    )


def _said(info: dict[str, Any], where: Path) -> dict[str, list[int]]:
    """Split → records of each of its files, as `dataset_info.json` says."""
    splits = info.get("splits", [])
    if not isinstance(splits, list) or not all(isinstance(split, dict) for split in splits):
        raise DataError("splits is no list of objects", where, "fetch or copy it again, or leave splits out")
    said = {}
    for split in splits:
        lengths = split.get("shardLengths", [])
        if not isinstance(lengths, list):
            raise DataError(f"shardLengths is {lengths!r:.60}; expected a list", where, "leave it out")
        if lengths:
            said[str(split.get("name"))] = [
                count(each, "an entry of shardLengths", where) for each in lengths
            ]
    return said
