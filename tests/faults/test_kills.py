"""Fifty processes killed while they train, each gone on with by another: bit for bit the run that nobody disturbed."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.killing import PHASES, draw, job
from tests.resume import test_exact, test_off_policy
from tests.resume.runs import KILLED, differences, resume
from uniarena import checkpoint
from uniarena.checkpoint import CheckpointError

NOTHING_LEFT = 3

PER = {"type": "prioritized"}
RUNS = {
    "ppo": test_exact.config(
        {"id": "CartPole-v1"}, test_exact.ppo(n_steps=16, **test_exact.SCHEDULES), total=500, save=128
    ),
    "dqn": test_off_policy.config({"type": "dqn", "n_step": 3}, buffer=PER),
    "sac": test_off_policy.config("sac", test_off_policy.PENDULUM),
    "large": test_off_policy.config(
        {"type": "dqn"}, {"id": "tests.faults.killing:Wide", "wrappers": []}, buffer={**PER, "capacity": 120}
    ),
}
for each in RUNS.values():
    each["training"]["total_timesteps"] += (
        12  # so that the last checkpoint is not one of those due by env steps
    )
"""Normalised observations and rewards, RND and schedules; priorities; three networks; a replay memory of 30 MB."""

Whole = Callable[[str], tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Name → the folder of the run that was never disturbed, and what there was of each phase."""
    found: dict[str, tuple[Path, dict[str, Any]]] = {}

    def of(name: str) -> tuple[Path, dict[str, Any]]:
        if name not in found:
            folder = tmp_path_factory.mktemp("whole") / name
            counted = folder.with_suffix(".counted.json")
            assert job(RUNS[name], folder, counted=counted) == (0, "")
            found[name] = folder, json.loads(counted.read_text(encoding="utf-8"))
        return found[name]

    return of


def case(number: int) -> tuple[str, str, bool]:
    """The run, the phase, and whether by the clock: every combination in 40."""
    return list(RUNS)[number % 4], PHASES[1 + number // 4 % 5], number // 20 % 2 == 1


def reached(folder: Path) -> int:
    """The env steps of the checkpoint that a run would go on from; 0: it would begin."""
    try:
        last = checkpoint.newest(folder / "checkpoints")[0]
    except CheckpointError:
        return 0
    return int(checkpoint.read_meta(last)["counters"]["env_steps"])


FAST = (4, 9, 21, 32)
"""Of two runs: in an update, an evaluation and a chunk, and while a checkpoint is written."""


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(k, marks=() if k in FAST else pytest.mark.slow, id="-".join(map(str, (k, *case(k)[:2]))))
        for k in range(50)
    ],
)
def test_killed_at_a_random_moment_and_continued_it_ends_as_if_nothing_had_happened(
    number: int, whole: Whole, tmp_path: Path
) -> None:
    name, phase, by_clock = case(number)
    reference, counted = whole(name)
    rng, folder, total = random.Random(number), tmp_path / "cut", RUNS[name]["training"]["total_timesteps"]
    moments = [draw(rng, phase, by_clock, counted)]
    if number % 3 == 2:  # and again, while the next process is set up to go on
        moments.append(draw(rng, "setup", False, counted))
    for moment in moments:
        over = reached(folder) == total
        code, where = job(RUNS[name], folder, moment)
        assert code == KILLED or (over and code == NOTHING_LEFT), moment
        assert reached(folder) > 0
        print(f"{name}, {moment}{f', calling {where}' if where else ''}; at {reached(folder)} of {total}")
    assert going_on(folder, total) == 0
    assert differences(reference, folder) == [], moments


def going_on(folder: Path, total: int) -> int:
    """Start the job again → its exit code; 0 also where it says that there is nothing left, and there is not."""
    expected = NOTHING_LEFT if reached(folder) == total else 0
    code = job(json.loads(folder.with_suffix(".json").read_text(encoding="utf-8")), folder)[0]
    return 0 if code == expected else code


@pytest.mark.parametrize("by_clock", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_before_its_first_checkpoint_it_begins_anew(
    by_clock: bool, whole: Whole, tmp_path: Path
) -> None:
    reference, counted = whole("ppo")
    moment = draw(random.Random(1), "setup", by_clock, counted)
    assert job(RUNS["ppo"], tmp_path / "cut", moment)[0] == KILLED
    assert reached(tmp_path / "cut") == 0
    assert job(RUNS["ppo"], tmp_path / "cut") == (0, "")
    assert differences(reference, tmp_path / "cut") == []


@pytest.mark.parametrize(
    "file",
    [
        "agent.safetensors",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("manifest.json", "state.json")),
    ],
)
@pytest.mark.parametrize("name", ["ppo", pytest.param("large", marks=pytest.mark.slow)])
def test_a_half_truncated_newest_checkpoint_is_named_and_an_older_one_gone_on_with(
    name: str, file: str, whole: Whole, tmp_path: Path
) -> None:
    reference, _ = whole(name)
    cut = tmp_path / "cut"
    shutil.copytree(reference, cut)
    newest = checkpoint.newest(cut / "checkpoints")[0]
    os.truncate(newest / file, (newest / file).stat().st_size // 2)
    assert resume(cut) == 0
    said = (cut / "run.log").read_text(encoding="utf-8")
    assert f"checkpoint {newest} is broken" in said and file in said and "using an older one" in said
    assert checkpoint.newest(cut / "checkpoints") == (newest, []) and differences(reference, cut) == []
