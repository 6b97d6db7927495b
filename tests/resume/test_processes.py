"""What reaches a running process from outside or from a user's callback: signals, the wall clock, errors."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import uniarena
from tests.resume.runs import INTERRUPTED, KILLED, differences, figures, last_checkpoint, resume, train
from tests.resume.test_exact import config, ppo
from uniarena import checkpoint

CARTPOLE = config({"id": "CartPole-v1"}, ppo(), total=640)
ASYNC = config({"id": "CartPole-v1", "vectorization": "async", "num_envs": 2}, ppo(), total=640)
STEPS = 4 * 32  # of an iteration of CARTPOLE


def workers_left(folder: Path) -> list[int]:
    """Environment workers that the disturbed process had and that are still running."""
    pids = json.loads((folder / "workers.json").read_text(encoding="utf-8"))
    return [
        pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CARTPOLE, never interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert train(CARTPOLE, folder) == 0
    return folder


def test_killed_in_any_iteration_it_is_continued_exactly(whole: Path, tmp_path: Path) -> None:
    cut, at = (
        tmp_path / "cut",
        random.SystemRandom().randint(3, 5),
    )  # the first checkpoint is of the second one
    assert train(CARTPOLE, cut, f"KILL@{at}") == KILLED
    assert resume(cut) == 0
    assert differences(whole, cut) == [], f"killed in iteration {at}"


@pytest.mark.slow
def test_a_killed_process_of_the_shell_is_continued_exactly_by_another(whole: Path, tmp_path: Path) -> None:
    cut, file = tmp_path / "cut", tmp_path / "config.json"
    file.write_text(
        json.dumps({**CARTPOLE, "callbacks": [{"type": "tests.resume.runs:Disturb"}]}), encoding="utf-8"
    )
    at = random.SystemRandom().randint(3, 5)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}

    def shell(*arguments: str, **more: str) -> int:
        command = [sys.executable, "-m", "uniarena", *arguments, "--quiet"]
        return subprocess.run(command, env={**environ, **more}, check=False, timeout=120).returncode

    assert shell("train", str(file), "--run-dir", str(cut), DISTURB=f"KILL@{at}") == KILLED
    assert last_checkpoint(cut).name == str(STEPS * 2 * ((at - 1) // 2))
    assert shell("resume", str(cut)) == 0
    assert differences(whole, cut) == [], f"killed in iteration {at}"


@pytest.mark.parametrize("name", ["INT", "TERM", "USR1", "HUP"])
def test_a_signal_finishes_the_iteration_and_saves_and_the_run_goes_on_exactly(
    whole: Path, tmp_path: Path, name: str
) -> None:
    """Ctrl-C, and what schedulers send before they kill."""
    cut = tmp_path / "cut"
    assert train(CARTPOLE, cut, f"{name}@3") == INTERRUPTED
    saved = last_checkpoint(cut)
    meta = checkpoint.read_meta(saved)
    assert (saved.name, meta["kind"], meta["exact"]) == (str(3 * STEPS), "interrupt", True)
    assert figures(cut)[-1]["env_steps"] == 3 * STEPS
    assert resume(cut) == 0
    assert differences(whole, cut) == []


def test_a_second_ctrl_c_leaves_at_once_with_the_last_checkpoint(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train(ASYNC, whole) == 0
    assert train(ASYNC, cut, "INT,INT@6") == INTERRUPTED
    assert last_checkpoint(cut).name == "256", "nothing is saved in the middle of an iteration"
    assert len(figures(cut)) == 5 and workers_left(cut) == []
    assert resume(cut) == 0
    assert differences(whole, cut) == []


def test_the_wall_time_limit_ends_the_run_cleanly_and_saves(tmp_path: Path) -> None:
    endless = config({"id": "CartPole-v1"}, ppo(), total=10_000_000, save=10_000_000)
    endless["training"] |= {"max_wall_time": 0.2, "eval_every_env_steps": 10_000_000}
    assert train(endless, tmp_path / "run") == 0
    saved = last_checkpoint(tmp_path / "run")
    assert checkpoint.read_meta(saved)["counters"]["env_steps"] == int(saved.name) < 10_000_000
    assert resume(tmp_path / "run") == 0
    assert int(last_checkpoint(tmp_path / "run").name) >= int(saved.name)


def test_a_stop_that_comes_before_the_loop_is_one(tmp_path: Path) -> None:
    settings = config({"id": "CartPole-v1"}, ppo(), total=10_000_000)
    settings["training"] |= {"max_wall_time": 1e-9}
    result = uniarena.train(settings, run_dir=tmp_path / "run", quiet=True)
    assert "max_wall_time" in result.stop_reason
    assert (tmp_path / "run" / "checkpoints" / str(result.env_steps)).is_dir()


class Failing:
    def __init__(self) -> None:
        self.seen: list[type] = []

    def on_update_end(self, trainer: Any, event: Any) -> None:
        if trainer.counters.updates == 2:
            assert len(multiprocessing.active_children()) >= 2
            raise ZeroDivisionError("of a user's callback")

    def on_exception(self, trainer: Any, event: Any) -> None:
        self.seen.append(type(event.error))
        raise RuntimeError("and it fails again when it is told")


class Told:
    def __init__(self) -> None:
        self.seen: list[BaseException] = []
        self.closed = False

    def on_exception(self, trainer: Any, event: Any) -> None:
        self.seen.append(event.error)

    def close(self) -> None:
        self.closed = True


def test_a_callback_that_fails_ends_the_run_and_leaves_no_process(tmp_path: Path) -> None:
    failing, told = Failing(), Told()
    before = set(multiprocessing.active_children())
    with pytest.raises(ZeroDivisionError, match="of a user's callback") as raised:
        uniarena.train(ASYNC, run_dir=tmp_path / "run", quiet=True, callbacks=[failing, told])
    assert failing.seen == [ZeroDivisionError]
    assert told.seen == [raised.value] and told.closed
    assert set(multiprocessing.active_children()) <= before
    assert "of a user's callback" in (tmp_path / "run" / "run.log").read_text(encoding="utf-8")


def test_a_failed_process_says_so_and_can_be_continued(whole: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    assert train(CARTPOLE, cut, "error@4") == 1
    assert resume(cut) == 0
    assert differences(whole, cut) == []
