"""Record video: the first column's episodes as mp4 (with the `video` extra) or animated GIF (always).

Frames are encoded as they come and never kept: memory does not grow with the length or the number of
    episodes.
"""

from __future__ import annotations

import importlib
import io
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import gymnasium as gym
import numpy as np
from PIL import Image

from uniarena.batch import Tree
from uniarena.config import ConfigError, config
from uniarena.envs.protocol import Env, Step
from uniarena.envs.wrappers.base import EnvWrapper


@config
class RecordVideoConfig:
    """Settings of `RecordVideo`."""

    folder: str = "videos"  # where the files go; made if missing
    prefix: str = "episode"  # files are called PREFIX-000000.mp4 or .gif, counted by episode
    every_episodes: int = 1  # record every k-th episode
    max_videos: int | None = None  # stop recording after so many files; None: never
    fps: int = 30  # frames per second of playback
    format: Literal["auto", "mp4", "gif"] = "auto"  # auto: mp4 where an encoder is installed

    def __post_init__(self) -> None:
        for name in ("every_episodes", "fps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected 1 or more", path=name)


def refuse_undrawn(env: Env, where: str) -> None:
    """Refuse to record what surely cannot be drawn, before it is reset.

    Raises:
        ConfigError: as `picture`.
    """
    try:
        picture(env, where)
    except ConfigError:
        raise
    except Exception:  # it may draw once it is reset
        return


class VideoWriter(Protocol):
    """Takes one frame after another; a file is complete after `close`."""

    def write(self, frame: np.ndarray) -> None:
        """Append an RGB picture `[H, W, 3]` uint8."""

    def close(self) -> None: ...


class RecordVideo(EnvWrapper):
    """Writes episodes of the first column as videos; a file appears under its name when its episode is over.

    Attributes:
        files: the finished videos, oldest first.

    Raises:
        ConfigError: at the first reset, when the environment gives no picture.
    """

    Config = RecordVideoConfig
    where = "environment.wrappers.record_video"

    def __init__(self, env: Env, cfg: RecordVideoConfig) -> None:
        super().__init__(env, cfg)
        self.suffix = _choose_format(cfg.format)
        self.files: list[Path] = []
        self._episode = -1
        self._writer: VideoWriter | None = None
        self._path = Path()

    def close(self) -> None:
        self._finish()
        super().close()

    def _reset(self, obs: Tree, seed: int | None, mask: Any | None) -> Tree:
        if mask is None or bool(mask[0]):
            self._begin()
        return obs

    def _step(self, step: Step, action: Tree) -> Step:
        if bool(step.is_first[0]):
            self._begin()
        elif self._writer is not None:
            self._writer.write(self._frame())
        return step

    def _begin(self) -> None:
        self._finish()
        self._episode += 1
        cfg: RecordVideoConfig = self.cfg
        full = cfg.max_videos is not None and len(self.files) >= cfg.max_videos
        if full or self._episode % cfg.every_episodes:
            return
        frame = self._frame()
        self._path = Path(cfg.folder) / f"{cfg.prefix}-{self._episode:06d}{self.suffix}"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        writer = GifWriter if self.suffix == ".gif" else Mp4Writer
        self._writer = writer(self._unfinished, frame.shape[:2], cfg.fps)
        self._writer.write(frame)

    def _finish(self) -> None:
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        writer.close()
        path, copy = self._path, 1
        while path.exists():  # another environment of the same run, or an earlier one, records here too
            copy += 1
            path = self._path.with_name(f"{self._path.stem}-{copy}{self.suffix}")
        self._unfinished.replace(path)
        self.files.append(path)

    @property
    def _unfinished(self) -> Path:
        return self._path.with_name(f".{self._path.stem}.{os.getpid()}-{id(self)}.part{self.suffix}")

    def _frame(self) -> np.ndarray:
        frame = picture(self.env, self.where)
        frame = np.asarray(frame)
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise ConfigError(
                f"render() of {self.env_id!r} gave {frame.dtype} {frame.shape}; expected uint8 (H, W, 3)",
                path=self.where,
            )
        return frame

    def _state(self) -> dict[str, Any]:
        return {"episode": self._episode}

    def _load_state(self, state: dict[str, Any]) -> None:
        self._episode = state["episode"]


class Mp4Writer:
    """Streams frames to ffmpeg, which imageio-ffmpeg brings (moviepy and imageio depend on it)."""

    def __init__(self, path: Path, size: tuple[int, int], fps: int) -> None:
        encoder: Any = importlib.import_module("imageio_ffmpeg")
        height, width = size
        # A block of 2: yuv420 needs even sides; the default of 16 would rescale most pictures.
        self._frames = encoder.write_frames(str(path), (width, height), fps=fps, macro_block_size=2)
        self._frames.send(None)

    def write(self, frame: np.ndarray) -> None:
        self._frames.send(np.ascontiguousarray(frame))

    def close(self) -> None:
        self._frames.close()


class GifWriter:
    """An animated GIF (GIF89a), one frame at a time.

    Pillow writes a GIF only from all frames at once, so each frame is encoded by Pillow as a picture of its
    own and joined here: its palette becomes the frame's local colour table.
    """

    def __init__(self, path: Path, size: tuple[int, int], fps: int) -> None:
        self._file: BinaryIO = path.open("wb")
        self._delay = max(2, round(100 / fps))  # hundredths of a second; players slow down anything below 2
        height, width = size
        self._file.write(b"GIF89a" + struct.pack("<HHBBB", width, height, 0x70, 0, 0))
        self._file.write(b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00")  # play for ever

    def write(self, frame: np.ndarray) -> None:
        data = io.BytesIO()
        Image.fromarray(frame).quantize(256, dither=Image.Dither.NONE).save(data, "GIF")
        size_bits, palette, picture = _split_gif(data.getvalue())
        self._file.write(b"\x21\xf9\x04" + struct.pack("<BHBB", 0x04, self._delay, 0, 0))
        self._file.write(picture[:9] + bytes([0x80 | picture[9] & 0x40 | size_bits]) + palette + picture[10:])

    def close(self) -> None:
        self._file.write(b"\x3b")
        self._file.close()


def _split_gif(data: bytes) -> tuple[int, bytes, bytes]:
    """(size bits, global colour table, image descriptor and data) of a GIF that holds one picture."""
    bits = data[10] & 0x07
    start = 13 + 3 * 2 ** (bits + 1)
    palette, at = data[13:start], start
    while data[at] == 0x21:  # extensions: label, then sub-blocks up to one of length 0
        at += 2
        while data[at]:
            at += data[at] + 1
        at += 1
    return bits, palette, data[at : data.rindex(b"\x3b")]


def picture(env: Env, where: str) -> np.ndarray:
    """What the first environment looks like.

    Args:
        where: config path of who asks, for messages.

    Raises:
        ConfigError: it gives no picture, or the package that draws it is missing.
    """
    try:
        frame = env.render()
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise ConfigError(
            f"drawing {env.env_id!r} needs a package that is not installed: {error}",
            path=where,
            hint='pip install "uniarena[video]"',
        ) from error
    if frame is None:
        raise ConfigError(
            f"{env.env_id!r} gives no picture to record",
            path=where,
            hint="make it with `environment.kwargs: {render_mode: rgb_array}`, or record no video",
        )
    return frame


def _choose_format(wanted: str) -> str:
    if wanted == "gif":
        return ".gif"
    try:
        importlib.import_module("imageio_ffmpeg")
    except ImportError:
        if wanted == "mp4":
            raise ConfigError(
                "mp4 needs an encoder that is not installed",
                path=f"{RecordVideo.where}.format",
                hint='run `pip install "uniarena[video]"`, or set `format: gif`',
            ) from None
        return ".gif"
    return ".mp4"
