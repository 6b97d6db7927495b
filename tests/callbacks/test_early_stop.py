"""Stopping at a threshold or on a plateau of a figure."""

from pathlib import Path

import pytest

from tests.callbacks.fake_trainer import FakeTrainer
from uniarena.config import ConfigError, parse
from uniarena.trainer.callbacks.early_stop import EarlyStop, EarlyStopConfig


def feed(trainer: FakeTrainer, values: list[float]) -> int | None:
    """How many values it took to stop; None: it did not."""
    for count, value in enumerate(values, start=1):
        trainer.iterate(eval__return_mean=value)
        if trainer.should_stop:
            return count
    return None


def test_stops_at_the_threshold() -> None:
    trainer = FakeTrainer(EarlyStop(threshold=475)).start()
    assert feed(trainer, [100, 474.9, 475, 500]) == 3
    assert trainer.requested == ["eval/return_mean reached 475 (threshold 475)"]


def test_stops_when_nothing_improves_for_a_while() -> None:
    trainer = FakeTrainer(EarlyStop(patience=3)).start()
    assert feed(trainer, [1, 5, 4, 6, 6, 5, 3, 9]) == 7
    assert trainer.requested == ["eval/return_mean did not improve on 6 in 3 values"]


def test_an_improvement_must_exceed_min_delta() -> None:
    trainer = FakeTrainer(EarlyStop(patience=2, min_delta=1.0)).start()
    assert feed(trainer, [10, 11, 11, 99]) == 3


def test_small_may_be_good() -> None:
    assert feed(FakeTrainer(EarlyStop(patience=2, mode="min")).start(), [5, 4, 4, 4]) == 4
    assert feed(FakeTrainer(EarlyStop(threshold=0.1, mode="min")).start(), [5, 0.2, 0.1]) == 3


def test_nan_is_no_improvement() -> None:
    nan = float("nan")
    assert feed(FakeTrainer(EarlyStop(patience=2)).start(), [nan, nan, 1]) == 2
    assert feed(FakeTrainer(EarlyStop(patience=3, threshold=2)).start(), [nan, 1, nan, 2]) == 4


def test_does_not_stop_before_min_env_steps() -> None:
    trainer = FakeTrainer(EarlyStop(threshold=1, min_env_steps=300)).start()
    assert feed(trainer, [5, 5, 5]) == 3


def test_iterations_without_the_figure_do_not_count() -> None:
    trainer = FakeTrainer(EarlyStop(patience=2)).start()
    trainer.iterate(eval__return_mean=1.0)
    for _ in range(5):
        trainer.iterate(loss=1.0)
    assert not trainer.should_stop


def test_another_figure_can_be_watched() -> None:
    trainer = FakeTrainer(EarlyStop(metric="kl", threshold=0.1)).start()
    trainer.iterate(kl=0.2)
    assert trainer.should_stop


def test_patience_goes_on_after_a_resume(tmp_path: Path) -> None:
    values = [1.0, 5.0, 4.0, 4.0, 4.0]
    first = FakeTrainer(EarlyStop(patience=3), run_dir=tmp_path).start()
    feed(first, values[:3])
    folder = first.save("interrupt")
    assert folder is not None
    second = FakeTrainer(EarlyStop(patience=3), run_dir=tmp_path).resume(folder)
    assert feed(second, values[3:]) == 2


def test_a_figure_that_never_came_up_is_said_with_those_there_are(caplog: pytest.LogCaptureFixture) -> None:
    trainer = FakeTrainer(EarlyStop(metric="retrun", threshold=1)).start()
    trainer.iterate(return_mean=1.0, kl=0.0)
    trainer.end()
    assert "'retrun', which never came up; figures: kl, return_mean" in caplog.text


def test_neither_threshold_nor_patience_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither a threshold nor a patience"):
        EarlyStop()
    with pytest.raises(ConfigError, match=r"callbacks\.0"):
        parse(EarlyStopConfig, {}, "callbacks.0")


def test_built_from_a_config_or_from_keywords() -> None:
    assert EarlyStop(EarlyStopConfig(patience=3)).cfg == EarlyStop(patience=3).cfg
