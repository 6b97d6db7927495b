"""When checkpoints are written, which are kept, and what happens when the disk refuses."""

import logging
from pathlib import Path

import pytest

from tests.callbacks.fake_trainer import Clock, FakeTrainer, steps_of
from uniarena import checkpoint
from uniarena.checkpoint import CheckpointError
from uniarena.config import ConfigError, parse
from uniarena.trainer.callbacks.checkpoint import Checkpoint, CheckpointConfig


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
    trainer = FakeTrainer(Checkpoint(every_env_steps=500), run_dir=tmp_path).start()
    trainer.iterate()
    trainer.end("interrupted")
    assert trainer.saved == [("interrupt", 100)]
    assert f"uniarena resume {tmp_path}" in caplog.text


def test_an_exception_saves_nothing(tmp_path: Path) -> None:
    assert not hasattr(Checkpoint(), "on_exception")


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


def test_a_full_disk_does_not_end_training_but_the_last_save_must_succeed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = Checkpoint(every_env_steps=100)
    trainer = FakeTrainer(callback, run_dir=tmp_path).start()
    trainer.iterate(eval__return_mean=1.0)

    def refuse(kind: str) -> None:
        raise CheckpointError(tmp_path / "x", "could not be written (No space left on device)")

    monkeypatch.setattr(trainer, "save", refuse)
    with caplog.at_level(logging.ERROR):
        trainer.iterate(eval__return_mean=2.0)
    assert caplog.text.count("training goes on") == 2 and callback.best_value == 1.0
    with pytest.raises(CheckpointError, match="No space left"):
        trainer.end()
    monkeypatch.undo()
    trainer.iterate(eval__return_mean=2.0)
    assert trainer.saved[-2:] == [("best", 300), ("step", 300)]


def test_without_a_run_folder_nothing_happens() -> None:
    trainer = FakeTrainer(Checkpoint(every_env_steps=100)).start()
    trainer.iterate(eval__return_mean=1.0)
    trainer.end()
    assert trainer.saved == []


@pytest.mark.parametrize(
    ("field", "value"), [("keep_last", 0), ("every_env_steps", 0), ("safety_minutes", 0), ("mode", "best")]
)
def test_impossible_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        parse(CheckpointConfig, {field: value}, "callbacks.0")
