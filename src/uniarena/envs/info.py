"""What a user's info dict says in numbers: `metrics`, `is_success`, `lives`, and what `score` adds to it at an end,
reduced to arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

SUCCESS = "is_success"
METRICS = "metrics"
LIVES = "lives"
GOES_ON = "episode_goes_on"
"""1 at an end that is one for learning only, such as a lost life: returns are counted on."""
RETURN = "episode_return"
"""The return of the game that ended, as statistics inside of the environment counted it."""
LATE = (GOES_ON, RETURN)
PLAIN = (SUCCESS, LIVES, GOES_ON, RETURN)


def reports(info: Mapping[str, Any]) -> bool:
    """Whether an info dict has anything for us."""
    return METRICS in info or SUCCESS in info or LIVES in info or GOES_ON in info


def plain_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """What of one environment's info is reported, as floats: small, and one type for all columns."""
    metrics = info.get(METRICS)
    kept: dict[str, Any] = {}
    if isinstance(metrics, Mapping):
        kept[METRICS] = {
            key: number for key, value in metrics.items() if (number := _number(value)) is not None
        }
    for name in PLAIN:
        if (number := _number(info.get(name))) is not None:
            kept[name] = number
    return kept


def reduce_infos(infos: Iterable[tuple[int, Mapping[str, Any]]], num_envs: int) -> dict[str, np.ndarray]:
    """(column, its info) pairs → `metrics/<name>`, `is_success` …, float32 `[B]`, NaN where absent."""
    found: dict[str, np.ndarray] = {}
    for column, info in infos:
        metrics = info.get(METRICS)
        entries = (
            [(f"{METRICS}/{key}", value) for key, value in metrics.items()]
            if isinstance(metrics, Mapping)
            else []
        )
        entries += [(name, info[name]) for name in PLAIN if name in info]
        for name, value in entries:
            _put(found, name, column, value, num_envs)
    return found


def reduce_vector_info(
    info: Mapping[str, Any], num_envs: int, ended: np.ndarray | None
) -> dict[str, np.ndarray]:
    """The same from the info of a gymnasium vector environment.

    Args:
        info: arrays `[B]` with `_<key>` presence masks.
        ended: `[B]` bool: columns that speak through `final_info` (SAME_STEP); None: nobody does.
    """
    found: dict[str, np.ndarray] = {}
    _gather(found, info, num_envs, None if ended is None else ~ended)
    final = info.get("final_info")
    if ended is not None and isinstance(final, Mapping):
        _gather(found, final, num_envs, ended)
    if ended is not None:  # of a game that ended while a wrapper stepped inside of its reset
        _gather(
            found,
            {name: info[name] for name in (*LATE, *map("_{}".format, LATE)) if name in info},
            num_envs,
            ended,
        )
    return found


def _gather(
    found: dict[str, np.ndarray], info: Mapping[str, Any], num_envs: int, rows: np.ndarray | None
) -> None:
    metrics = info.get(METRICS)
    sources: list[tuple[str, str, Mapping[str, Any]]] = []
    if isinstance(metrics, Mapping):
        sources += [(f"{METRICS}/{key}", key, metrics) for key in metrics if not key.startswith("_")]
    sources += [(name, name, info) for name in PLAIN if name in info]
    for name, key, source in sources:
        values, present = source[key], source.get(f"_{key}")
        for column in range(num_envs) if rows is None else np.flatnonzero(rows):
            if present is None or present[column]:
                _put(found, name, int(column), values[column], num_envs)


def _put(found: dict[str, np.ndarray], name: str, column: int, value: Any, num_envs: int) -> None:
    number = _number(value)
    if number is None:
        return
    if name not in found:
        found[name] = np.full(num_envs, np.nan, np.float32)
    found[name][column] = number


def _number(value: Any) -> float | None:
    """The value as a float; None for text, arrays and nothing, which are no figures."""
    if value is None or isinstance(value, (str, bytes)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
