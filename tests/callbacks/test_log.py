"""Figures reach every logger, once per step, also over a resume."""

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.callbacks.fake_trainer import Clock, FakeTrainer
from uniarena.config import ConfigError
from uniarena.optim.minimize import NonFiniteError
from uniarena.sampling.evaluation import EvalResult
from uniarena.trainer.callbacks.log import Log
from uniarena.trainer.callbacks.resources import Resources
from uniarena.trainer.events import ExceptionRaised, ValidationEpoch
from uniarena.trainer.loggers.jsonl import Jsonl, JsonlConfig, read_rows
from uniarena.trainer.loggers.tensorboard import Tensorboard, TensorboardConfig

ONLY_JSONL = ({"type": "jsonl"},)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return read_rows(folder / "metrics.jsonl")


def events_of(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder / "events"), size_guidance={"scalars": 0, "histograms": 0})
    return accumulator.Reload()


def scalar(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events_of(folder).Scalars(name)]


class Spy:
    """A user's logger."""

    def __init__(self, **fields: Any) -> None:
        self.fields, self.calls = fields, []

    def open(self, run_dir: Path, step: int) -> None:
        self.calls.append(("open", run_dir, step))

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self.calls.append(("scalars", step, dict(values)))

    def close(self) -> None:
        self.calls.append(("close",))


# -- rows -------------------------------------------------------------------------------------------
def test_a_row_every_iteration_with_everything_in_it(tmp_path: Path) -> None:
    callback, clock = Log(every_env_steps=300, loggers=ONLY_JSONL), Clock()
    callback.clock = clock
    trainer = FakeTrainer(callback, run_dir=tmp_path).start()
    for _ in range(3):
        clock.now += 0.5
        trainer.iterate(return_mean=3.0, kl=torch.tensor(0.25), my__figure=1)
    trainer.end()
    rows = rows_of(tmp_path)
    assert [row["env_steps"] for row in rows] == [100, 200, 300]
    assert rows[1]["updates"] == 2 and rows[1]["iterations"] == 2
    assert rows[1]["fps"] == 200.0 and rows[1]["wall_s"] == 1.0
    assert rows[1]["return_mean"] == 3.0 and rows[1]["kl"] == 0.25 and rows[1]["my/figure"] == 1
    assert rows[1]["system/memory_mib"] > 1 and rows[1]["system/cpu_percent"] >= 0


def test_the_noise_of_gaussian_actions_is_logged(tmp_path: Path) -> None:
    trainer = FakeTrainer(Log(loggers=ONLY_JSONL), run_dir=tmp_path)
    trainer.agent.model.log_std = torch.nn.Parameter(torch.tensor([0.0, math.log(3.0)]))
    trainer.start().iterate()
    assert rows_of(tmp_path)[0]["exploration_std"] == pytest.approx(2.0)


def test_evaluation_time_is_no_training_time(tmp_path: Path) -> None:
    callback, clock = Log(loggers=ONLY_JSONL), Clock()
    callback.clock = clock
    trainer = FakeTrainer(callback, run_dir=tmp_path).start()
    clock.now = 3.0
    trainer.emit(ValidationEpoch(EvalResult("deterministic", (1.0,), (1,), seconds=2.0)))
    trainer.iterate()
    assert rows_of(tmp_path)[0]["wall_s"] == 1.0 and rows_of(tmp_path)[0]["fps"] == 100.0


def test_figures_of_a_last_evaluation_join_the_last_row(tmp_path: Path) -> None:
    trainer = FakeTrainer(Log(), run_dir=tmp_path).start()
    trainer.iterate(loss=1.0)
    trainer.metrics["eval/return_mean"] = 7.0
    trainer.end()
    (row,) = rows_of(tmp_path)
    assert row["loss"] == 1.0 and row["eval/return_mean"] == 7.0
    assert scalar(tmp_path, "eval/return_mean") == [(100, 7.0)]
    assert scalar(tmp_path, "training/loss") == [(100, 1.0)]
    assert len(events_of(tmp_path).Scalars("training/updates")) == 1


def test_numbers_that_json_lacks_are_null_and_named(tmp_path: Path) -> None:
    trainer = FakeTrainer(Log(), run_dir=tmp_path).start()
    trainer.iterate(loss=math.nan, ratio=math.inf, ok=1.0)
    trainer.end()
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    row = json.loads(text)
    assert row["loss"] is None and row["ratio"] is None and row["ok"] == 1.0
    assert row["non_finite"] == {"loss": "nan", "ratio": "inf"}


def test_without_a_run_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = FakeTrainer(Log()).start()
    trainer.iterate(loss=1.0)
    trainer.end()
    assert list(tmp_path.iterdir()) == []


def test_an_exception_closes_the_files_with_all_rows_in_them(tmp_path: Path) -> None:
    callback = Log()
    trainer = FakeTrainer(callback, run_dir=tmp_path).start()
    trainer.iterate(loss=1.0)
    callback.on_exception(trainer, ExceptionRaised(RuntimeError("mine")))
    assert len(rows_of(tmp_path)) == 1 and scalar(tmp_path, "training/loss") == [(100, 1.0)]


def test_a_fault_that_ends_the_run_is_its_last_row_which_a_resumed_run_drops(tmp_path: Path) -> None:
    callback = Log()
    trainer = FakeTrainer(callback, run_dir=tmp_path).start()
    trainer.iterate(loss=1.0)
    callback.on_exception(trainer, ExceptionRaised(NonFiniteError("loss", ["policy"], "the loss is nan")))
    rows = rows_of(tmp_path)
    assert [row["env_steps"] for row in rows] == [100, 101]
    assert rows[1] == {"env_steps": 101, "fault/loss": None, "non_finite": {"fault/loss": "nan"}}
    trainer.start()  # at 100 env steps, where the last good state was kept
    assert [row["env_steps"] for row in rows_of(tmp_path)] == [100]


# -- other loggers ----------------------------------------------------------------------------------
def test_others_get_means_over_each_log_interval(tmp_path: Path) -> None:
    trainer = FakeTrainer(Log(every_env_steps=300), run_dir=tmp_path).start()
    for value in (1.0, 2.0, 6.0, 10.0):
        trainer.iterate(loss=value, **({"eval__return_mean": 50.0} if value == 2.0 else {}))
    trainer.end()
    assert scalar(tmp_path, "training/loss") == [(300, 3.0), (400, 10.0)]
    assert scalar(tmp_path, "eval/return_mean") == [(300, 50.0)]  # though it came between two log points
    assert scalar(tmp_path, "training/updates") == [(300, 3.0), (400, 4.0)]


def test_a_users_logger_by_class_and_by_import_path(tmp_path: Path) -> None:
    callback = Log(loggers=({"type": Spy, "colour": "red"}, {"type": "tests.callbacks.test_log:Spy"}))
    trainer = FakeTrainer(callback, run_dir=tmp_path).start()
    trainer.iterate(loss=2.0)
    trainer.end()
    spies = [logger for logger in callback.loggers if type(logger).__name__ == "Spy"]
    assert len(spies) == 2 and spies[0].fields == {"colour": "red"}
    for spy in spies:
        assert [call[0] for call in spy.calls] == ["open", "scalars", "close"]
        assert spy.calls[0] == ("open", tmp_path, 0) and spy.calls[1][2]["loss"] == 2.0
    assert len(rows_of(tmp_path)) == 1  # the rows are always written


def test_a_wrong_field_of_a_logger_is_named() -> None:
    with pytest.raises(ConfigError, match=r"experiment\.loggers\.1"):
        Log(loggers=({"type": "jsonl"}, {"type": "tensorboard", "foldr": "x"}))


# -- resume -----------------------------------------------------------------------------------------
def test_the_axis_goes_on_where_the_checkpoint_was(tmp_path: Path) -> None:  # case B49
    def make() -> FakeTrainer:
        return FakeTrainer(Log(), run_dir=tmp_path, total=2000)

    first = make().start()
    first.run(300)
    folder = first.save("step")
    first.run(600)
    first.end()
    second = make().resume(folder)
    for _ in range(4):
        second.iterate(loss=-1.0)
    second.end()
    steps = [row["env_steps"] for row in rows_of(tmp_path)]
    assert steps == [100, 200, 300, 400, 500, 600, 700]
    assert [row.get("loss") for row in rows_of(tmp_path)][3:] == [-1.0] * 4
    shown = [step for step, _ in scalar(tmp_path, "training/updates")]
    assert shown == [100, 200, 300, 400, 500, 600, 700]
    assert [step for step, _ in scalar(tmp_path, "training/loss")] == [400, 500, 600, 700]


def test_a_row_cut_off_by_a_kill_is_dropped_on_resume(tmp_path: Path) -> None:
    first = FakeTrainer(Log(loggers=ONLY_JSONL), run_dir=tmp_path).start()
    first.run(200)
    folder = first.save("step")
    first.callbacks[0].close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 300, "lo')
    second = FakeTrainer(Log(loggers=ONLY_JSONL), run_dir=tmp_path).resume(folder)
    second.iterate()
    assert [row["env_steps"] for row in rows_of(tmp_path)] == [100, 200, 300]


def test_wall_time_and_open_intervals_go_on(tmp_path: Path) -> None:
    def make() -> FakeTrainer:
        callback = Log(every_env_steps=400)
        callback.clock = Clock()
        return FakeTrainer(callback, run_dir=tmp_path)

    first = make().start()
    first.callbacks[0].clock.now = 5.0
    first.iterate(loss=1.0)
    first.iterate(loss=2.0)
    folder = first.save("interrupt")
    first.end("interrupted")
    second = make().resume(folder)
    second.callbacks[0].clock.now = 1.0
    second.iterate(loss=3.0)
    second.iterate(loss=6.0)
    second.end()
    assert [row["wall_s"] for row in rows_of(tmp_path)] == [5.0, 5.0, 6.0, 6.0]
    assert max(scalar(tmp_path, "training/loss")) == (400, 3.0)  # files of one second are read in any order


def test_training_on_in_the_same_program_continues_the_rows(tmp_path: Path) -> None:
    trainer = FakeTrainer(Log(), run_dir=tmp_path).start()
    trainer.iterate(loss=1.0)
    trainer.end()
    trainer.start()
    trainer.iterate(loss=2.0)
    trainer.end()
    assert [row["loss"] for row in rows_of(tmp_path)] == [1.0, 2.0]


def test_a_fresh_run_in_an_old_folder_begins_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"env_steps": 50}\n')
    FakeTrainer(Log(loggers=ONLY_JSONL), run_dir=tmp_path).start().iterate()
    assert [row["env_steps"] for row in rows_of(tmp_path)] == [100]


# -- the KL warning ---------------------------------------------------------------------------------
def test_a_large_kl_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = FakeTrainer(Log(), run_dir=tmp_path).start()
    trainer.iterate(kl=0.29, clip_range=0.2)
    assert caplog.text == ""
    trainer.iterate(kl=0.31, clip_range=0.2)
    trainer.iterate(kl=0.5, clip_range=0.2)
    assert caplog.text.count("mean KL of") == 1
    assert "at 200 env steps" in caplog.text and "0.31" in caplog.text and "learning_rate" in caplog.text
    folder = trainer.save("step")
    caplog.clear()
    resumed = FakeTrainer(Log(), run_dir=tmp_path).resume(folder)
    resumed.iterate(kl=0.9, clip_range=0.2)
    assert caplog.text == ""


@pytest.mark.parametrize(
    "metrics", [{}, {"kl": 9.0}, {"clip_range": 0.1}, {"kl": math.nan, "clip_range": 0.1}]
)
def test_no_kl_warning_without_both_figures(
    metrics: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    FakeTrainer(Log()).start().iterate(**metrics)
    assert "mean KL" not in caplog.text


# -- histograms, graph, videos ----------------------------------------------------------------------
def test_histograms_on_request(tmp_path: Path) -> None:
    trainer = FakeTrainer(Log(histograms=True, every_env_steps=200), run_dir=tmp_path).start()
    for scale in (1.0, 2.0, 3.0):
        trainer.iterate(gradients={"actor.weight": torch.full((2, 1), scale)})
    trainer.end()
    accumulator = events_of(tmp_path)
    assert {"parameters/actor.weight", "gradients/actor.weight", "actions", "values"} <= set(
        accumulator.Tags()["histograms"]
    )
    (event,) = accumulator.Histograms("gradients/actor.weight")
    assert event.step == 200 and event.histogram_value.max == 2.0 and event.histogram_value.num == 2
    assert accumulator.Histograms("actions")[0].histogram_value.sum == 100


def test_histograms_cost_nothing_unless_asked_for() -> None:
    assert not hasattr(Log(), "on_learn_step") and not hasattr(Log(), "on_batch_collected")
    assert hasattr(Log(histograms=True), "on_learn_step")


def test_histograms_leave_the_model_in_its_mode(tmp_path: Path) -> None:
    trainer = FakeTrainer(Log(histograms=True), run_dir=tmp_path).start()
    trainer.agent.model.train()
    trainer.iterate()
    assert trainer.agent.model.training


def test_the_graph_on_request_and_once(tmp_path: Path) -> None:
    trainer = FakeTrainer(Log(graph=True), run_dir=tmp_path).start()
    trainer.iterate()
    trainer.iterate()
    trainer.end()
    assert "actor" in str(events_of(tmp_path).Graph())


def test_a_model_that_cannot_be_traced_costs_a_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Wild(torch.nn.Module):
        def forward(self, obs: torch.Tensor) -> None:
            raise RuntimeError("no tracing here")

    logger = Tensorboard(TensorboardConfig())
    logger.open(tmp_path, 0)
    logger.graph(Wild(), torch.zeros(1))
    logger.close()
    assert "no tracing here" in caplog.text


def test_gif_videos_are_shown(tmp_path: Path) -> None:
    from PIL import Image

    frames = [Image.fromarray(np.full((6, 8, 3), 40 * k, np.uint8)) for k in range(3)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    (tmp_path / "b.mp4").write_bytes(b"x")
    callback = Log()
    trainer = FakeTrainer(callback, run_dir=tmp_path).start()
    trainer.iterate()
    callback.video(100, "videos/0", tmp_path / "a.gif")
    callback.video(100, "videos/1", tmp_path / "b.mp4")
    trainer.end()
    accumulator = events_of(tmp_path)
    assert accumulator.Tags()["images"] == ["videos/0"]
    image = accumulator.Images("videos/0")[0]
    assert (image.width, image.height, image.step) == (8, 6, 100)
    assert image.encoded_image_string == (tmp_path / "a.gif").read_bytes()


def test_histograms_skip_what_is_not_finite(tmp_path: Path) -> None:
    logger = Tensorboard(TensorboardConfig())
    logger.open(tmp_path, 0)
    logger.histograms(1, {"a": np.array([1.0, np.nan]), "b": np.array([np.inf]), "c": np.zeros(0)})
    logger.close()
    assert events_of(tmp_path).Tags()["histograms"] == ["a"]


# -- parts ------------------------------------------------------------------------------------------
def test_a_second_call_with_the_same_step_adds_to_the_row(tmp_path: Path) -> None:
    logger = Jsonl(JsonlConfig())
    logger.open(tmp_path, 0)
    logger.scalars(1, {"a": 1.0, "long": 123456.0})
    logger.scalars(1, {"b": 2.0})
    logger.scalars(2, {"a": 3.0})
    logger.close()
    assert rows_of(tmp_path) == [
        {"env_steps": 1, "a": 1.0, "long": 123456.0, "b": 2.0},
        {"env_steps": 2, "a": 3.0},
    ]


def test_rows_are_on_disk_at_once(tmp_path: Path) -> None:
    logger = Jsonl(JsonlConfig())
    logger.open(tmp_path, 0)
    logger.scalars(1, {"a": 1.0})
    assert rows_of(tmp_path) == [{"env_steps": 1, "a": 1.0}]
    logger.close()
    logger.scalars(2, {"a": 1.0})  # after the end: ignored


def test_resources_measure_from_the_second_reading_on() -> None:
    resources = Resources()
    assert set(resources.read()) == {"system/memory_mib", "system/load"}
    assert set(resources.read()) == {"system/memory_mib", "system/load", "system/cpu_percent"}


# -- the event file -------------------------------------------------------------------------------------
def test_checksums_are_those_of_the_standard() -> None:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c as slow
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    from uniarena.trainer.loggers.event_file import crc32c, masked

    # RFC 3720, B.4: 32 bytes of zeros, of ones, and 0 to 31
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    data = np.random.default_rng(0).integers(0, 256, 1600, dtype=np.uint8).tobytes()
    for length in (0, 1, 3, 4, 5, 8, 511, 512, 513, 515, 516, 1025, 1600):
        assert crc32c(data[:length]) == slow(data[:length])
    assert masked(data) == masked_crc32c(data)


def test_events_are_there_as_soon_as_they_are_written(tmp_path: Path) -> None:
    logger = Tensorboard(TensorboardConfig())
    logger.open(tmp_path, 0)
    for step in (1, 2):
        logger.scalars(step, {"kl": 0.5 * step})
        assert scalar(tmp_path, "training/kl")[-1] == (step, 0.5 * step)  # nothing was closed or flushed
    logger.close()


def test_an_event_that_was_cut_off_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = Tensorboard(TensorboardConfig())
    logger.open(tmp_path, 0)
    logger.scalars(1, {"kl": 1.0})
    real = os.write

    def half(descriptor: int, data: Any) -> int:
        if len(data) > 8:
            return real(descriptor, data[:8])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(KeyboardInterrupt):
            logger.scalars(2, {"kl": 2.0})
    logger.scalars(3, {"kl": 3.0})
    logger.close()
    assert scalar(tmp_path, "training/kl") == [(1, 1.0), (3, 3.0)]
    assert len(list((tmp_path / "events").iterdir())) == 1


def test_a_closed_event_file_writes_nowhere(tmp_path: Path) -> None:
    from uniarena.trainer.loggers.event_file import EventFile

    first, second = EventFile(str(tmp_path)), EventFile(str(tmp_path))  # of one second and one process
    assert len(list(tmp_path.iterdir())) == 2
    first.close()
    first.close()
    with pytest.raises(OSError):
        first.add_event(SimpleNamespace(SerializeToString=lambda: b"lost"))
    second.close()
    assert all(path.stat().st_size == 0 for path in tmp_path.iterdir())
