"""Signals at the edges of a run: while it is set up, in its last chunk, in its last evaluation, while it is saved."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.test_runs import rows
from uniarena.run import surroundings
from uniarena.run.surroundings import ended_early

US = "tests.cli.users"


@pytest.mark.parametrize("callback", ["LateCtrlC", "LateTerm"])
def test_a_signal_at_the_end_does_not_make_a_complete_run_an_interrupted_one(ua, callback: str) -> None:
    told = ua("train", "small.yaml", f"callbacks=['{US}:{callback}']", "--run-dir", "here", "--json")
    assert told.code == 0, told.err
    assert told.json["env_steps"] == 128 and told.json["eval"]["episodes"] == 2
    assert "at the end: evaluating and saving" in told.err and "finishing the iteration" not in told.err
    result = json.loads(Path("here/result.json").read_text())
    assert (result["stop_reason"], result["resumable"]) == ("finished", False)
    assert ua("resume", "here").code == 3


def test_a_signal_in_the_last_chunk_lets_the_run_finish(ua) -> None:
    from tests.cli.users import StopsInLastChunk

    StopsInLastChunk.steps = 0
    told = ua("train", "small.yaml", f"environment.id={US}:StopsInLastChunk", "environment.num_envs=1",
              "training.eval_every_env_steps=1000", "training.total_timesteps=112", "--run-dir", "here")  # fmt: skip
    assert told.code == 0, told.err
    assert "finishing the iteration" in told.err and "finished: 112 env steps" in told.out
    assert "eval/return_mean" in rows("here")[-1]


@pytest.mark.parametrize("first", ["CtrlC", "LateCtrlC"])
def test_two_are_enough_where_environments_hang_when_they_are_closed(
    ua, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    from tests.cli.users import HangsAtClose

    monkeypatch.setattr(surroundings, "PATIENCE_S", 0.05)
    HangsAtClose.closings = HangsAtClose.waited_in_vain = 0
    env, callback = f"environment.id={US}:HangsAtClose", f"callbacks=['{US}:{first}']"
    told = ua("train", "small.yaml", env, callback, "--run-dir", "here")
    assert told.code == 130 and "Ctrl-C again leaves at once" in told.err
    assert HangsAtClose.closings >= 2 and HangsAtClose.waited_in_vain == 0
    assert (Path("here/checkpoints") / ("64" if first == "CtrlC" else "128") / "manifest.json").exists()
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_a_signal_after_a_callback_ended_the_run_leaves_its_reason(ua) -> None:
    told = ua("train", "small.yaml", f"callbacks=['{US}:Solved']", "--run-dir", "here")
    assert told.code == 0 and "solved: 64 env steps" in told.out
    assert "evaluation, deterministic" in told.out


def test_a_signal_during_set_up_leaves_at_once_and_nothing_behind(ua) -> None:
    told = ua("train", "small.yaml", f"environment.id={US}:StoppedWhenMade", "--run-dir", "here")
    assert told.code == 130
    assert not Path("here").exists()


def test_signals_that_are_ignored_stay_so() -> None:
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_early():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
