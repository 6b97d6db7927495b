"""Videos: every file is readable, has the right pictures, and memory does not grow."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from tests.wrappers.columns import Columns, zeros
from uniarena.config import ConfigError
from uniarena.envs.wrappers.record_video import GifWriter, RecordVideo, RecordVideoConfig


def pictures(path: Path) -> list[np.ndarray]:
    """All frames of a GIF as RGB."""
    with Image.open(path) as gif:
        frames = []
        for k in range(getattr(gif, "n_frames", 1)):
            gif.seek(k)
            frames.append(np.asarray(gif.convert("RGB")))
        return frames


def record(
    folder: Path, mode: str = "same_step", steps: int = 7, lengths: tuple[int, ...] = (3, 99), **options: Any
) -> Any:
    env = RecordVideo(
        Columns(mode, lengths=lengths), RecordVideoConfig(folder=str(folder), format="gif", **options)
    )
    env.reset()
    for _ in range(steps):
        env.step(zeros(env))
    env.close()
    return env


@pytest.mark.parametrize("mode", ["same_step", "next_step", "tensor_dense"])
def test_episodes_of_the_first_column_become_files(tmp_path: Path, mode: str):
    env = record(tmp_path / "videos", mode)
    names = [path.name for path in env.files]
    assert (
        names == ["episode-000000.gif", "episode-000001.gif", "episode-000002.gif"][: len(names)]
        and len(names) >= 2
    )
    first = pictures(env.files[0])
    shown = [int(frame[0, 0, 0]) for frame in first]
    assert shown[:3] == [40, 50, 60] and len(shown) == (4 if mode == "next_step" else 3)
    assert int(pictures(env.files[1])[0][0, 0, 0]) == 40
    assert (
        sorted(path.name for path in (tmp_path / "videos").iterdir()) == names
    )  # nothing unfinished is left


def test_two_hundred_episodes_are_readable_not_black_and_memory_is_flat(tmp_path: Path):  # case B94
    process = psutil.Process()
    env = RecordVideo(Columns(lengths=(10,)), RecordVideoConfig(folder=str(tmp_path), format="gif"))
    env.reset()
    before = 0
    for k in range(2000):
        env.step(zeros(env))
        if k == 100:
            before = process.memory_info().rss
    grown = process.memory_info().rss - before
    env.close()
    assert grown < 50 * 2**20
    assert len(env.files) == 201
    for path in env.files:
        frames = pictures(path)
        assert frames[0].shape == (64, 64, 3) and np.mean(frames) >= 40


def test_colours_and_timing_survive(tmp_path: Path):
    rng = np.random.default_rng(0)
    palette = rng.integers(0, 256, (200, 3), dtype=np.uint8)
    frames = [palette[rng.integers(0, 200, (33, 47))] for _ in range(5)]
    writer = GifWriter(tmp_path / "x.gif", (33, 47), fps=10)
    for frame in frames:
        writer.write(frame)
    writer.close()
    got = pictures(tmp_path / "x.gif")
    assert len(got) == 5 and all(np.array_equal(a, b) for a, b in zip(got, frames, strict=True))
    with Image.open(tmp_path / "x.gif") as gif:
        assert gif.info["duration"] == 100 and gif.info["loop"] == 0


def test_some_episodes_and_a_largest_number_of_files(tmp_path: Path):
    env = record(tmp_path, steps=40, lengths=(2, 3), every_episodes=5, max_videos=3, prefix="eval")
    assert [path.name for path in env.files] == ["eval-000000.gif", "eval-000005.gif", "eval-000010.gif"]


def test_an_environment_without_pictures_is_refused_before_any_step(tmp_path: Path):
    inner = Columns()
    inner.render = lambda: None  # type: ignore[method-assign]
    env = RecordVideo(inner, RecordVideoConfig(folder=str(tmp_path), format="gif"))
    with pytest.raises(ConfigError, match="gives no picture") as caught:
        env.reset()
    assert "render_mode: rgb_array" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_episode_count_is_saved_state(tmp_path: Path):
    env = record(tmp_path, steps=8)
    other = RecordVideo(Columns(lengths=(3, 99)), RecordVideoConfig(folder=str(tmp_path), format="gif"))
    other.load_state_dict(env.state_dict())
    other.reset()
    assert other._path.name == "episode-000003.gif"
    other.close()


def test_two_environments_that_record_into_one_folder_do_not_overwrite(tmp_path: Path):
    envs = [
        RecordVideo(Columns(lengths=(2,)), RecordVideoConfig(folder=str(tmp_path), format="gif"))
        for _ in range(2)
    ]
    for env in envs:
        env.reset()
    for env in envs:
        env.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["episode-000000-2.gif", "episode-000000.gif"]
    assert all(len(pictures(env.files[0])) == 1 for env in envs)


def test_mp4_is_streamed_to_the_encoder_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written: list[Any] = []

    def write_frames(path: str, size: tuple[int, int], **options: Any) -> Any:
        Path(path).write_bytes(b"")
        written.append((size, options["fps"]))
        while True:
            frame = yield
            written.append(frame.shape)

    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", types.SimpleNamespace(write_frames=write_frames))
    env = RecordVideo(Columns(lengths=(2,)), RecordVideoConfig(folder=str(tmp_path), fps=12))
    env.reset()
    env.step(zeros(env))
    env.close()
    assert env.files == [tmp_path / "episode-000000.mp4"]
    assert written == [((64, 64), 12), (64, 64, 3), (64, 64, 3)]


def test_mp4_without_an_encoder_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match="encoder") as caught:
        RecordVideo(Columns(), RecordVideoConfig(format="mp4"))
    assert "uniarena[video]" in str(caught.value)
    assert RecordVideo(Columns(), RecordVideoConfig()).suffix == ".gif"


# imageio_ffmpeg's own reader leaves its pipes to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.extra("video")
def test_a_real_mp4_has_frames_of_the_right_size(tmp_path: Path):
    import imageio_ffmpeg

    env = RecordVideo(Columns(lengths=(5,)), RecordVideoConfig(folder=str(tmp_path), format="mp4"))
    env.reset()
    for _ in range(4):
        env.step(zeros(env))
    env.close()
    reader = imageio_ffmpeg.read_frames(str(env.files[0]))
    assert next(reader)["size"] == (64, 64)
    frames = list(reader)
    assert len(frames) == 5 and np.frombuffer(frames[0], np.uint8).mean() > 30
