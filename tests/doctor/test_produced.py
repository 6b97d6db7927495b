"""Runs that are made ill on purpose show it, and healthy ones are left alone; the arms are those of the benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.doctor import ARMS, Arm, summary, train
from uniarena.analysis.doctor import ILLNESSES


def test_arms_name_illnesses_that_there_are():
    named = {name for arm in ARMS for name in (arm.illness, *arm.also) if name}
    assert named <= ILLNESSES.keys()
    assert len({arm.name for arm in ARMS}) == len(ARMS)
    assert sum(not arm.illness for arm in ARMS) >= 6


def test_precision_and_recall():
    runs = [
        {"illness": "a", "found": ["a", "b"], "hit": True, "false": ["b"]},
        {"illness": "a", "found": [], "hit": False, "false": []},
        {"illness": "", "found": ["c"], "hit": False, "false": ["c"]},
        {"illness": "", "found": [], "hit": False, "false": []},
    ]
    found = summary(runs)
    assert (found["recall"], found["precision"], found["healthy_undisturbed"]) == (0.5, 1 / 3, 1)


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_a_run_shows_what_it_was_made_for(arm: Arm, tmp_path: Path):
    result = train(arm, 0, tmp_path / "run")
    assert result["hit"] or not arm.illness, result["found"]
    assert result["false"] == []
