"""When checkpoints are written, which are kept, and what happens when the disk refuses."""

import logging
from pathlib import Path

import pytest

from tests.callbacks.fake_trainer import Clock, FakeTrainer, steps_of
from uniarena import checkpoint
from uniarena.checkpoint import CheckpointError
from uniarena.config import ConfigError, parse
from uniarena.envs import WorkerError
from uniarena.trainer.callbacks.checkpoint import Checkpoint, CheckpointConfig
from uniarena.trainer.events import ExceptionRaised


def names(trainer: FakeTrainer) -> list[str]:
    return sorted(path.name for path in (trainer.run_dir / "checkpoints").iterdir())  # type: ignore[operator]


def test_saves_when_due_and_at_the_end(tmp_path: Path) -> None:
    trainer = FakeTrainer(Checkpoint(every_env_steps=250, best=None), run_dir=tmp_path, total=900).start()
    trainer.run(900)
    trainer.end()
    assert trainer.saved == [("step", 300), ("step", 500), ("step", 800), ("final", 900)]


def test_the_last_step_checkpoint_is_not_written_twice(tmp_path: Path) -> None:
    trainer = FakeTrainer(Checkpoint(every_env_steps=500, best=None), run_dir=tmp_path).start()
    trainer.run(1000)
    trainer.end()
    assert trainer.saved == [("step", 500), ("step", 1000)]


def test_keeps_the_last_few_and_the_best(tmp_path: Path) -> None:
    trainer = FakeTrainer(Checkpoint(every_env_steps=100, keep_last=2), run_dir=tmp_path).start()
    for value in (1.0, 9.0, 3.0, 4.0):
        trainer.iterate(eval__return_mean=value)
    assert names(trainer) == ["300", "400", "best"]
    assert checkpoint.read_meta(tmp_path / "checkpoints" / "best")["counters"]["env_steps"] == 200
    assert steps_of(trainer.saved, "best") == [100, 200]


def test_keep_none_keeps_all(tmp_path: Path) -> None:
    trainer = FakeTrainer(
        Checkpoint(every_env_steps=100, keep_last=None), run_dir=tmp_path, total=700
    ).start()
    trainer.run(700)
    assert len(names(trainer)) == 7


def test_folders_that_are_no_checkpoints_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "mine").mkdir(parents=True)
    (tmp_path / "checkpoints" / "note.txt").touch()
    (tmp_path / "checkpoints" / ".200.1-ab.tmp").mkdir()
    trainer = FakeTrainer(Checkpoint(every_env_steps=100, keep_last=1), run_dir=tmp_path).start()
    trainer.run(300)
    assert names(trainer) == ["300", "mine", "note.txt"]  # what a killed save had left is gone


def test_the_best_may_be_the_smallest_and_nan_is_never_best(tmp_path: Path) -> None:
    callback = Checkpoint(best="loss", mode="min")
    trainer = FakeTrainer(callback, run_dir=tmp_path).start()
    for value in (float("nan"), 3.0, 5.0, 2.0, 2.0):
        trainer.iterate(loss=value)
    assert steps_of(trainer.saved, "best") == [200, 400] and callback.best_value == 2.0


def test_the_final_evaluation_can_make_the_best(tmp_path: Path) -> None:
    trainer = FakeTrainer(Checkpoint(), run_dir=tmp_path, total=100).start()
    trainer.run(100)
    trainer.metrics["eval/return_mean"] = 5.0
    trainer.end()
    assert trainer.saved == [("best", 100), ("final", 100)]


def test_a_safety_checkpoint_is_written_after_ten_minutes_and_replaced_by_the_next(tmp_path: Path) -> None:
    callback, clock = Checkpoint(every_env_steps=500, best=None), Clock()
    callback.clock = clock
    trainer = FakeTrainer(callback, run_dir=tmp_path).start()
    for _ in range(4):
        clock.now += 301.0
        trainer.iterate()
    assert trainer.saved == [("safety", 200), ("safety", 400)]
    assert names(trainer) == ["400"]
    clock.now += 301.0
    trainer.iterate()
    assert trainer.saved[-1] == ("step", 500) and names(trainer) == ["500"]
    clock.now += 599.0
    trainer.iterate()
    assert trainer.saved[-1] == ("step", 500)


def test_an_interrupt_saves_and_says_how_to_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trainer = FakeTrainer(Checkpoint(every_env_steps=500), run_dir=tmp_path).start()
    trainer.iterate()
    trainer.end("interrupted")
    assert trainer.saved == [("interrupt", 100)]
    assert f"uniarena resume {tmp_path}" in caplog.text


def test_an_exception_saves_nothing_unless_it_was_a_worker_between_two_saves(tmp_path: Path) -> None:
    callback = Checkpoint(every_env_steps=100)
    trainer = FakeTrainer(callback, run_dir=tmp_path).start()
    trainer.iterate()
    saved = list(trainer.saved)
    callback.on_exception(trainer, ExceptionRaised(RuntimeError("mine")))
    callback.on_exception(trainer, ExceptionRaised(WorkerError("gone")))  # nothing was learned since
    assert trainer.saved == saved == [("step", 100)]
    trainer.counters.env_steps += 20
    callback.on_exception(trainer, ExceptionRaised(RuntimeError("mine")))
    callback.on_exception(trainer, ExceptionRaised(WorkerError("gone")))
    assert trainer.saved == [*saved, ("fault", 120)]


def test_the_boundary_is_declared_exactly_where_a_step_checkpoint_follows(tmp_path: Path) -> None:
    callback = Checkpoint(every_env_steps=250, best=None)
    trainer = FakeTrainer(callback, run_dir=tmp_path, total=2000).start()
    declared, saved = [], []
    valid_rows = [97, 100, 50, 99, 3, 100, 100, 88, 100, 97, 100, 61, 100, 100, 100]
    for valid in valid_rows:
        declared.append(callback.due(trainer))
        before = len(steps_of(trainer.saved, "step"))
        trainer.iterate(valid=valid)
        saved.append(len(steps_of(trainer.saved, "step")) > before)
    assert declared == saved and sum(saved) == 5


def test_decisions_after_a_resume_are_those_of_a_run_that_never_stopped(tmp_path: Path) -> None:
    valid = [97, 100, 50, 99, 3, 100, 100, 88, 100, 97, 100, 61]

    def make(folder: Path) -> FakeTrainer:
        return FakeTrainer(Checkpoint(every_env_steps=250), run_dir=folder, total=5000)

    whole = make(tmp_path / "a").start()
    for k, rows in enumerate(valid):
        whole.iterate(valid=rows, eval__return_mean=[3.0, 5.0, 4.0][k % 3])
    cut = make(tmp_path / "b").start()
    for k, rows in enumerate(valid[:5]):
        cut.iterate(valid=rows, eval__return_mean=[3.0, 5.0, 4.0][k % 3])
    saved_before = list(cut.saved)
    folder = cut.save("interrupt")
    resumed = make(tmp_path / "b").resume(folder)
    for k, rows in enumerate(valid[5:], start=5):
        resumed.iterate(valid=rows, eval__return_mean=[3.0, 5.0, 4.0][k % 3])
    assert saved_before + resumed.saved == whole.saved


def test_after_going_back_the_checkpoints_of_the_branch_given_up_go_first(tmp_path: Path) -> None:
    trainer = FakeTrainer(
        Checkpoint(every_env_steps=100, keep_last=3, best=None), run_dir=tmp_path, total=2000
    )
    trainer.start().run(500)
    assert names(trainer) == ["300", "400", "500"]
    back = FakeTrainer(Checkpoint(every_env_steps=50, keep_last=3, best=None), run_dir=tmp_path, total=2000)
    back.chunk = 50
    back.resume(tmp_path / "checkpoints" / "300").run(450)
    assert names(back) == ["352", "404", "456"]
    assert checkpoint.newest(tmp_path / "checkpoints")[0].name == "456"


class Disk:
    """Refuses saves of a fake trainer while it is full."""

    def __init__(self, trainer: FakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full, self.tried, self.room = True, [], 0
        self._save = trainer.save
        self.trainer = trainer
        monkeypatch.setattr(trainer, "save", self.save)

    def save(self, kind: str) -> Path | None:
        folder = self.trainer.run_dir / "checkpoints"  # type: ignore[operator]
        self.tried.append((kind, self.trainer.counters.env_steps))
        held = len(list(folder.iterdir())) if folder.is_dir() else 0
        if self.full and held > self.room:
            raise CheckpointError(folder, "could not be written (No space left on device)")
        return self._save(kind)


def test_a_full_disk_does_not_end_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback, clock = Checkpoint(every_env_steps=300), Clock()
    callback.clock = clock
    trainer = FakeTrainer(callback, run_dir=tmp_path, total=5000).start()
    trainer.iterate(eval__return_mean=1.0)
    disk = Disk(trainer, monkeypatch)
    trainer.iterate()
    trainer.iterate(eval__return_mean=2.0)
    assert disk.tried == [("best", 300), ("step", 300)] and callback.best_value == 1.0
    assert caplog.text.count("training goes on") == 1 and "No space left" in caplog.text
    disk.tried.clear()
    for _ in range(8):  # tried again, ever more rarely beside those that are due
        clock.now += 6.0
        trainer.iterate()
    assert disk.tried == [("safety", 500), ("step", 600), ("step", 900)]
    assert caplog.text.count("training goes on") == 1
    disk.full = False
    clock.now += 90.0
    trainer.iterate()
    assert trainer.saved[-1] == ("step", 1200) and "are written again" in caplog.text
    trainer.iterate()
    assert trainer.saved[-1] == ("step", 1200)


def test_a_failed_save_is_tried_again_at_the_next_boundary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = FakeTrainer(Checkpoint(every_env_steps=300, best=None), run_dir=tmp_path).start()
    disk = Disk(trainer, monkeypatch)
    disk.room = -1
    trainer.run(300)
    disk.full = False
    trainer.iterate()
    assert disk.tried == [("step", 300), ("safety", 400)] and names(trainer) == ["400"]


def test_the_last_save_makes_room_by_what_would_go_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = FakeTrainer(
        Checkpoint(every_env_steps=100, best=None, keep_last=2), run_dir=tmp_path, total=350
    ).start()
    trainer.run(300)
    disk = Disk(trainer, monkeypatch)
    disk.room = 1
    trainer.run(350)
    trainer.end()
    assert names(trainer) == ["300", "352"] and trainer.saved[-1][0] == "final"


def test_the_only_whole_checkpoint_is_never_given_up_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = FakeTrainer(
        Checkpoint(every_env_steps=100, best=None, keep_last=1), run_dir=tmp_path, total=350
    ).start()
    trainer.run(300)
    (tmp_path / "checkpoints" / "300" / "state.json").write_text("{}")
    checkpoint.save(tmp_path / "checkpoints" / "250", {}, {"kind": "step", "counters": {"env_steps": 250}})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Disk(trainer, monkeypatch)
    trainer.run(350)
    with pytest.raises(CheckpointError):
        trainer.end()
    assert checkpoint.newest(tmp_path / "checkpoints")[0].name == "250"


def test_a_last_save_that_fails_says_where_everything_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    callback = Checkpoint(every_env_steps=300, best=None)
    trainer = FakeTrainer(callback, run_dir=tmp_path / "run", total=400).start()
    trainer.run(300)
    disk = Disk(trainer, monkeypatch)
    trainer.iterate()
    with pytest.raises(CheckpointError, match="No space left") as caught:
        trainer.end()
    notes = "\n".join(caught.value.__notes__)
    assert "reached 400 env steps" in notes
    assert str(tmp_path / "run" / "checkpoints" / "300") in notes
    (saved,) = (tmp_path / "elsewhere").glob("uniarena-*/run-400")
    assert str(saved) in notes and checkpoint.read_meta(saved)["kind"] == "agent"
    disk.full = False  # nothing of it was lost from memory
    trainer.end()
    assert names(trainer) == ["300", "400"]


def test_some_checkpoints_are_kept_for_ever(tmp_path: Path) -> None:
    callback = Checkpoint(every_env_steps=100, best=None, keep_last=2, keep_every_env_steps=250)
    trainer = FakeTrainer(callback, run_dir=tmp_path, total=1200).start()
    trainer.run(1200)
    assert names(trainer) == ["1000", "1100", "1200", "300", "500", "800"]


def test_a_safety_checkpoint_is_not_kept_for_ever(tmp_path: Path) -> None:
    callback, clock = (
        Checkpoint(every_env_steps=200, best=None, keep_last=1, keep_every_env_steps=100),
        Clock(),
    )
    callback.clock = clock
    trainer = FakeTrainer(callback, run_dir=tmp_path, total=1200).start()
    clock.now += 601.0
    trainer.iterate()
    assert names(trainer) == ["100"]
    trainer.run(400)
    assert names(trainer) == ["200", "400"]


def test_without_a_run_folder_nothing_happens() -> None:
    trainer = FakeTrainer(Checkpoint(every_env_steps=100)).start()
    trainer.iterate(eval__return_mean=1.0)
    trainer.end()
    assert trainer.saved == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("keep_last", 0),
        ("keep_every_env_steps", 0),
        ("every_env_steps", 0),
        ("safety_minutes", 0),
        ("mode", "best"),
    ],
)
def test_impossible_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        parse(CheckpointConfig, {field: value}, "callbacks.0")
