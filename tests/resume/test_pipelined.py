"""Killed and continued in a new process ≡ never interrupted, where the next chunk is being collected meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.resume import test_exact, test_memory, test_off_policy
from tests.resume.runs import KILLED, differences, figures, resume, train
from uniarena import checkpoint

RUNS: dict[str, dict[str, Any]] = {
    **{f"on-policy {name}": run for name, run in test_exact.RUNS.items()},
    **{f"off-policy {name}": run for name, run in test_off_policy.RUNS.items()},
    **{f"memory {name}": run for name, run in test_memory.RUNS.items()},
}
FAST = (
    "on-policy ppo_cartpole",
    "on-policy no_native_state_wrappers",
    "on-policy curriculum_without_native_state",
    "on-policy two_columns_a_worker",
    "off-policy everything",
    "off-policy parameter_noise",
    "memory ppo",
)
SPREAD = ("on-policy no_native_state_wrappers", "off-policy parameter_noise", "memory ppo")
"""With two producers, too; the others of `FAST` are slow there."""
MARKS: dict[str, Any] = {"on-policy lunarlander": pytest.mark.extra("box2d")}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, () if name in FAST else pytest.mark.slow)) for name in RUNS],
)
def test_a_killed_and_resumed_run_ends_as_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    _killed_and_resumed(name, "pipelined", tmp_path)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SPREAD else pytest.mark.slow) for name in FAST]
)
def test_so_does_one_with_two_producers(name: str, tmp_path: Path) -> None:
    _killed_and_resumed(name, {"type": "pipelined", "producers": 2}, tmp_path)


def _killed_and_resumed(name: str, sampling: Any, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    given = {**RUNS[name], "sampling": sampling}
    buffer = given["agent"].get("buffer", {})
    if "memory_map" in buffer:
        given["agent"] = {**given["agent"], "buffer": {**buffer, "memory_map": str(tmp_path / "mapped")}}
    assert train(given, whole) == 0
    kind, _, which = name.partition(" ")
    if kind == "off-policy":
        at = test_off_policy.chunk_at(which, 2 * test_off_policy.TOTAL // 3)
    elif kind == "memory":
        at = 150 // (2 * given["learner"].get("n_steps", 2))
    else:
        at = test_exact.KILL_AT.get(which, len(figures(whole)) // 2 + 1)
    assert train(given, cut, f"KILL@{at}") == KILLED
    assert checkpoint.newest(cut / "checkpoints")
    assert resume(cut) == 0
    assert differences(whole, cut) == []
