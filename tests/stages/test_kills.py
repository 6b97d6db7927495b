"""Stopped anywhere, and above all between two stages: what goes on is bit for bit the run that nobody disturbed."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults import killing
from tests.resume.runs import KILLED, command, differences, ended, hurry, run_command, start
from tests.stages.runs import config, rows_of, unlike
from uniarena import assembly, checkpoint, provenance, train
from uniarena.assembly import starting
from uniarena.checkpoint import CheckpointError, files
from uniarena.config import ConfigError
from uniarena.run import NothingToDo, resume, single, stages
from uniarena.run.folder import read_result


class Killed(BaseException):
    """The process is gone."""


class Interrupts:
    """As Ctrl-C would, once a stage's clock is there, or when all of it is done but its last evaluation; by default
    never.
    """

    def __init__(self, unit: str = "", clock: int = 0, at_the_end_of: str = "") -> None:
        self.unit, self.clock, self.end = unit, clock, at_the_end_of

    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        if trainer.counters.unit == self.unit and trainer.counters.clock >= self.clock:
            trainer.request_stop("interrupted")

    def on_training_end(self, trainer: Any, event: Any) -> None:
        if trainer.counters.unit == self.end:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that was never disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(config(data, type="prioritized"), run_dir=folder, quiet=True, callbacks=[Interrupts()])
    return folder


def kills(patch: pytest.MonkeyPatch, owner: Any, name: str, call: int, after: bool = False) -> None:
    """Let the process die in the n-th call of a function from now on (from 1), before or after its work."""
    real: Callable[..., Any] = getattr(owner, name)
    left = [call]

    def patched(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not after:
            raise Killed
        found = real(*args, **kwargs)
        if left[0] == 0:
            raise Killed
        return found

    patch.setattr(owner, name, patched)


MOMENTS = {
    "after the last checkpoint of the first": (single, "write_result", 1, False),
    "after the first": (single, "write_result", 1, True),
    "before the second begins": (stages, "last_checkpoint", 1, False),
    "while its networks are taken over": (starting, "_go_on", 1, False),
    "when they were": (starting, "_go_on", 1, True),
    "while the second is assembled": (assembly, "build_callbacks", 2, False),
    "when its configuration is written": (provenance, "replace_text", 4, True),
    "in its first checkpoint": (files, "_write", 5, False),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_the_change_of_stages(
    moment: str, whole: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, call, after = MOMENTS[moment]
    run = tmp_path / "run"
    hurry(monkeypatch)
    with monkeypatch.context() as patch:
        kills(patch, owner, name, call, after)
        with pytest.raises(Killed):
            train(config(data, type="prioritized"), run_dir=run, quiet=True, callbacks=[Interrupts()])
    assert (run / "1-pretrain" / "checkpoints" / "40" / "manifest.json").is_file()
    assert not (run / "2-finetune" / "checkpoints" / "20" / "manifest.json").exists()
    resume(run, quiet=True, callbacks=[Interrupts()])
    assert unlike(whole, run) == []
    with pytest.raises(NothingToDo, match=r"stages\.finetune\.training\.total_timesteps"):
        resume(run, quiet=True)


def test_a_job_that_is_started_again_goes_on(whole: Path, data: Path, tmp_path: Path) -> None:
    run, settings = tmp_path / "run", config(data, type="prioritized")
    job = {"run_dir": run, "resume_if_exists": True, "quiet": True}
    first = train(settings, **job, callbacks=[Interrupts("updates", 20)])
    assert first.resumable and [stage.run.name for stage in first.stages] == ["1-pretrain"]
    second = train(settings, **job, callbacks=[Interrupts("env_steps", 20)])
    assert second.resumable and [stage.env_steps for stage in second.stages] == [0, 20]
    other = {**settings, "learner": {**settings["learner"], "gamma": 0.9}}
    with pytest.raises(ConfigError, match="gamma") as caught:
        train(other, **job)
    assert {fault.path for fault in caught.value.faults} == {f"stages.{k}.learner.gamma" for k in (0, 1)}
    result = train(settings, **job, callbacks=[Interrupts()])
    assert not result.resumable and (result.env_steps, result.updates) == (60, 40 + 27)
    assert unlike(whole, run) == []
    with pytest.raises(NothingToDo):
        train(settings, **job)


def killed_in(owner: str, name: str, call: int, arguments: tuple[str, ...]) -> None:
    """A command whose process is ended by the system in the n-th call of a function."""
    module = {"single": single, "starting": starting, "stages": stages, "files": files}[owner]
    real, left = getattr(module, name), [call]

    def patched(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    setattr(module, name, patched)
    run_command(arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", [("single", "write_result", 1), ("starting", "_go_on", 1), ("files", "_publish", 5)]
)
def test_sigkill_at_the_change_of_stages(moment: tuple[str, str, int], data: Path, tmp_path: Path) -> None:
    file, straight, cut = tmp_path / "run.json", tmp_path / "straight", tmp_path / "cut"
    file.write_text(json.dumps(config(data, type="prioritized")), encoding="utf-8")
    words = ("train", str(file), "--quiet", "--run-dir")
    assert command(*words, str(straight)) == 0
    assert ended(start(killed_in, *moment, (*words, str(cut))), "a run in stages") == KILLED
    assert command("resume", str(cut), "--quiet") == 0
    assert unlike(straight, cut) == [] and command("resume", str(cut), "--quiet") == 3


def test_changes_hold_for_what_is_not_complete(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(config(data), run_dir=run, quiet=True, callbacks=[Interrupts("updates", 20)])
    changes = ["learner.learning_rate=5e-4", "stages.finetune.learner.gamma=0.9"]
    resume(run, changes, quiet=True, callbacks=[Interrupts("updates", 40)])
    assert (run / "1-pretrain" / "changes.jsonl").is_file() and rows_of(run / "1-pretrain")[-1][
        "learning_rate"
    ] == 5e-4
    resume(run, quiet=True)
    meta = checkpoint.read_meta(run / "2-finetune" / "checkpoints" / "60")
    assert "gamma: 0.9" in meta["config"] and "learning_rate: 0.0005" in meta["config"]
    with pytest.raises(ConfigError, match=r"stages\.0\.learner\.gamma[^$]*the next one began from it"):
        resume(run, ["stages.pretrain.learner.gamma=0.5"], quiet=True)
    longer = resume(run, ["stages.finetune.training.total_timesteps=80"], quiet=True)
    assert [stage.env_steps for stage in longer.stages] == [0, 80]
    with pytest.raises(NothingToDo):
        resume(run, ["learner.learning_rate=1e-3"], quiet=True)


@pytest.fixture(scope="module")
def counted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run in a process of its own, and how many functions were called from the end of a stage on: as far as the
    next one begins to learn, and to the end of the last.
    """
    folder = tmp_path_factory.mktemp("counted") / "run"
    file = folder.with_suffix(".counted.json")
    assert killing.job(config(data, type="prioritized"), folder, counted=file) == (0, "")
    return folder, int(json.loads(file.read_text(encoding="utf-8"))["end"]["events"])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_killed_anywhere_between_two_stages(
    number: int, counted: tuple[Path, int], data: Path, tmp_path: Path
) -> None:
    reference, events = counted
    settings, run = config(data, type="prioritized"), tmp_path / "run"
    moment = killing.Moment("end", event=random.Random(number).randrange(events))
    code, where = killing.job(settings, run, moment)
    assert code == KILLED, moment
    print(f"{moment}, calling {where}")
    assert killing.job(settings, run)[0] in (0, 3)
    assert unlike(reference, run) == [], (moment, where)


def test_ctrl_c_at_the_end_of_a_stage_keeps_the_next_from_beginning(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    result = train(
        config(data, type="prioritized"),
        run_dir=folder,
        quiet=True,
        callbacks=[Interrupts(at_the_end_of="updates")],
    )
    assert result.stop_reason == "interrupted" and result.resumable
    assert len(result.stages) == 1 and result.stages[0].stop_reason == "finished"
    assert not list(folder.glob("2-*"))
    ended = resume(folder, quiet=True, callbacks=[Interrupts()])
    assert len(ended.stages) == 2 and not unlike(whole, folder)


class Rises(Interrupts):
    """A figure by which the last agent is the best one, so that `best` is written right before the last checkpoint."""

    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        trainer.metrics["rises"] = float(trainer.counters.clock)


def rising(data: Path) -> dict[str, Any]:
    settings = config(data)
    settings["stages"][0]["callbacks"] = [{"type": "checkpoint", "best": "rises"}]
    return settings


@pytest.fixture(scope="module")
def risen(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("risen") / "run"
    train(rising(data), run_dir=folder, quiet=True, callbacks=[Rises()])
    return folder


def refused(patch: pytest.MonkeyPatch, name: str, error: BaseException) -> None:
    """Let no checkpoint of this name come to be."""
    real = files._publish

    def publish(temporary: Path, folder: Path, *rest: Any) -> Any:
        if folder.name == name:
            raise error
        return real(temporary, folder, *rest)

    patch.setattr(files, "_publish", publish)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("error", [Killed(), FULL], ids=["killed", "full disk"])
def test_a_stage_whose_best_agent_is_its_last_is_brought_to_its_end(
    error: BaseException, risen: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    first = run / "1-pretrain"
    hurry(monkeypatch)
    with monkeypatch.context() as patch:
        refused(patch, "40", error)
        with pytest.raises((Killed, CheckpointError)):
            train(rising(data), run_dir=run, quiet=True, callbacks=[Rises()])
    assert checkpoint.read_meta(first / "checkpoints" / "best")["counters"]["updates"] == 40
    assert (first / "checkpoints" / "20").is_dir() and not (first / "checkpoints" / "40").exists()
    result = resume(run, quiet=True, callbacks=[Rises()])
    assert result.stages[0].updates == 40 and read_result(first) is not None
    assert unlike(risen, run) == [] and differences(risen / "1-pretrain", first) == []
    with pytest.raises(NothingToDo):
        resume(run, quiet=True)


@pytest.mark.parametrize("moment", ["before the last checkpoint", "before the result"])
def test_a_run_that_was_killed_at_its_very_end_is_brought_to_it(
    moment: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = rising(data)
    settings |= settings.pop("stages")[0]
    del settings["name"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    hurry(monkeypatch)
    train(settings, run_dir=whole, quiet=True, callbacks=[Rises()])
    with monkeypatch.context() as patch:
        if moment == "before the result":
            kills(patch, single, "write_result", 1)
        else:
            refused(patch, "40", Killed())
        with pytest.raises(Killed):
            train(settings, run_dir=cut, quiet=True, callbacks=[Rises()])
    with pytest.raises(NothingToDo, match="its 30 updates"):  # a length below what was done ends nothing
        resume(cut, ["training.total_updates=30"], quiet=True, callbacks=[Rises()])
    again = resume(cut, quiet=True, callbacks=[Rises()])
    assert again.updates == 40 and not again.resumable and differences(whole, cut) == []
    ended = [read_result(folder) for folder in (whole, cut)]
    assert ended[0] is not None and ended[1] is not None and ended[0].eval == ended[1].eval is not None
    with pytest.raises(NothingToDo, match="its 40 updates already"):
        resume(cut, quiet=True)
    with pytest.raises(NothingToDo, match="is complete"):
        train(settings, run_dir=cut, resume_if_exists=True, quiet=True)


def test_no_stage_begins_from_an_earlier_agent_than_the_last(risen: Path, tmp_path: Path) -> None:
    run = tmp_path / "1-pretrain"
    shutil.copytree(risen / "1-pretrain", run)
    assert stages.last_checkpoint(run).name == "40"
    shutil.rmtree(run / "checkpoints" / "40")
    with pytest.raises(CheckpointError, match="is the end of stage 1-pretrain"):
        stages.last_checkpoint(run)
