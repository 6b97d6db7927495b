"""Evaluation episodes as videos in the run folder and in TensorBoard."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.callbacks.fake_trainer import FakeTrainer
from tests.fakes.envs import CounterEnv
from uniarena.envs import make_env
from uniarena.trainer.callbacks.log import Log
from uniarena.trainer.callbacks.video import Video


def factory(num_envs: int, seed: int | None = None, wrappers: tuple[Any, ...] = ()) -> Any:
    kwargs = {"length": 4, "render_mode": "rgb_array"}
    return make_env(CounterEnv, num_envs, seed=seed, kwargs=kwargs, wrappers=wrappers)


def test_episodes_are_recorded_when_due_and_at_the_end(tmp_path: Path) -> None:
    callbacks = Video(every_env_steps=200, n_episodes=2), Log()
    trainer = FakeTrainer(*callbacks, run_dir=tmp_path, total=300, env_factory=factory).start()
    trainer.run(300)
    trainer.end()
    names = sorted(path.name for path in (tmp_path / "videos").iterdir())
    assert names == ["200-000000.gif", "200-000001.gif", "300-000000.gif", "300-000001.gif"]
    with Image.open(tmp_path / "videos" / "200-000000.gif") as video:
        assert video.n_frames == 4 and video.size == (8, 8)


def test_the_loggers_are_told(tmp_path: Path) -> None:
    from tests.callbacks.test_log import events_of

    trainer = FakeTrainer(Video(every_env_steps=100), Log(), run_dir=tmp_path, env_factory=factory).start()
    trainer.iterate()
    trainer.callbacks[1].close()
    assert events_of(tmp_path).Tags()["images"] == ["videos/0"]


def test_a_long_episode_is_cut(tmp_path: Path) -> None:
    trainer = FakeTrainer(
        Video(max_episode_steps=2), run_dir=tmp_path, total=100, env_factory=factory
    ).start()
    trainer.iterate()
    trainer.end()
    with Image.open(tmp_path / "videos" / "100-000000.gif") as video:
        assert video.n_frames == 3  # the reset and two steps


@pytest.mark.parametrize("reason", ["interrupted"])
def test_an_interrupt_is_not_kept_waiting(reason: str, tmp_path: Path) -> None:
    trainer = FakeTrainer(Video(), run_dir=tmp_path, env_factory=factory).start()
    trainer.iterate()
    trainer.end(reason)
    assert not (tmp_path / "videos").exists()


def test_nothing_without_a_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = FakeTrainer(Video(every_env_steps=100), env_factory=None).start()
    trainer.iterate()
    trainer.end()
    assert list(tmp_path.iterdir()) == []
