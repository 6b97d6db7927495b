"""Crop, grayscale and resize against hand-computed pixels; layouts are declared or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from PIL import Image

from tests.wrappers.columns import MODES, Columns, numpy, zeros
from uniarena.config import ConfigError
from uniarena.envs.wrappers.image import PreprocessImage, PreprocessImageConfig

HWC = spaces.Box(0, 255, (6, 8, 3), np.uint8)
CHW = spaces.Box(0, 255, (3, 6, 8), np.uint8)


class Picture(Columns):
    """Shows the same given picture in every column."""

    picture: np.ndarray

    def _observe(self) -> Any:
        rows = np.stack([self.picture] * self.num_envs) if hasattr(self, "picture") else super()._observe()
        return self._own(rows) if isinstance(rows, np.ndarray) else rows


def process(
    picture: np.ndarray, mode: str = "same_step", space: spaces.Box | None = None, **options: Any
) -> np.ndarray:
    """The picture as the wrapper gives it, with the space checked."""
    space = space or spaces.Box(0, 255, picture.shape, np.uint8)
    inner = Picture(mode, space)
    inner.picture = picture
    env = PreprocessImage(inner, PreprocessImageConfig(**options))
    out = numpy(env.reset())[0]
    assert env.observation_space.contains(out)
    return out


def gradient(height: int, width: int, channels: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)


@pytest.mark.parametrize("mode", ["same_step", "tensor_dense"])
def test_halving_the_size_is_the_mean_of_two_by_two_pixels(mode: str):
    picture = gradient(6, 8, 3)
    expected = picture.reshape(3, 2, 4, 2, 3).astype(float).mean((1, 3))
    out = process(picture, mode, size=(3, 4))
    assert np.abs(out - expected).max() <= 0.5001


def test_a_size_that_does_not_divide_weighs_pixels_by_area():
    row = np.array([[0, 90, 240]], np.uint8)[..., None].repeat(3, axis=2)  # 1 × 3 pixels to 1 × 2
    out = process(row, layout="HWC", size=(1, 2))
    assert out[0, :, 0].tolist() == [30, 190]  # (0·1 + 90·½) / 1½, (90·½ + 240·1) / 1½


def test_resizing_by_whole_factors_agrees_with_pillow():
    picture = gradient(210, 160, 3)
    ours = process(picture, size=(42, 80)).astype(int)
    theirs = np.asarray(Image.fromarray(picture).resize((80, 42), Image.Resampling.BOX)).astype(int)
    assert np.abs(ours - theirs).max() <= 1  # Pillow rounds between its two passes


@pytest.mark.parametrize("mode", ["same_step", "tensor_same_step"])
def test_grayscale_is_luma_and_keeps_the_channel_axis(mode: str):
    picture = np.zeros((2, 2, 3), np.uint8)
    picture[0, 0], picture[0, 1], picture[1, 0], picture[1, 1] = (
        [255, 0, 0],
        [0, 255, 0],
        [0, 0, 255],
        [255, 255, 255],
    )
    out = process(picture, mode, layout="HWC", grayscale=True)
    assert out.shape == (2, 2, 1) and out.ravel().tolist() == [76, 150, 29, 255]
    channels_first = process(
        np.ascontiguousarray(picture.transpose(2, 0, 1)), mode, layout="CHW", grayscale=True
    )
    assert channels_first.shape == (1, 2, 2) and channels_first.ravel().tolist() == [76, 150, 29, 255]


def test_crop_is_taken_first_and_layout_can_be_turned():
    picture = gradient(6, 8, 3)
    out = process(picture, crop=(1, 2, 4, 5), output_layout="CHW")
    np.testing.assert_array_equal(out, picture[1:5, 2:7].transpose(2, 0, 1))
    np.testing.assert_array_equal(process(picture), picture)


def test_float_images_are_scaled_by_their_declared_bounds():
    picture = np.full((4, 4, 3), 0.5, np.float32)
    out = process(picture, space=spaces.Box(0.0, 1.0, (4, 4, 3), np.float32), layout="HWC", keys=("",))
    assert out.dtype == np.uint8 and set(out.ravel()) == {128}


def test_a_picture_without_channels_gains_the_declared_axis():
    picture = gradient(5, 6, 1)[..., 0]
    assert process(picture, layout="CHW").shape == (1, 5, 6)
    assert process(picture, layout="HWC").shape == (5, 6, 1)
    with pytest.raises(ConfigError, match="without channels"):
        process(picture)


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (spaces.Box(0, 255, (3, 84, 3), np.uint8), {}, "cannot be told"),
        (spaces.Box(0, 255, (9, 9, 9), np.uint8), {}, "cannot be told"),
        (HWC, {"layout": "CHW"}, r"layout is CHW.*6 channels"),
        (HWC, {"crop": (0, 0, 7, 2)}, r"crop.*6 × 8"),
        (HWC, {"size": 0}, "size is 0"),
        (spaces.Box(0, 255, (6, 8, 4), np.uint8), {"grayscale": True}, "4 channels"),
        (spaces.Box(0, 255, (5,), np.uint8), {}, "no leaf"),
        (spaces.Box(-np.inf, np.inf, (2, 5), np.float32), {}, "no leaf"),  # case B26
        (spaces.Box(-np.inf, np.inf, (6, 8, 3), np.float32), {"keys": ("",)}, "finite bounds"),
        (spaces.Dict({"a": HWC, "b": CHW}), {}, "2 leaves could be images"),
    ],
)
def test_what_cannot_be_meant_is_refused(space: Any, options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        PreprocessImage(Columns("same_step", space), PreprocessImageConfig(**options))
    assert "environment.wrappers.preprocess_image" in str(caught.value)


@pytest.mark.parametrize("mode", MODES)
def test_final_observations_are_processed_like_all_others(mode: str):
    space = spaces.Dict({"cam": HWC, "speed": spaces.Box(0, 9, (1,), np.float32)})
    env = PreprocessImage(Columns(mode, space), PreprocessImageConfig(grayscale=True, size=(3, 4)))
    env.reset()
    env.step(zeros(env))
    step = env.step(zeros(env))
    last = step.final.obs if step.final is not None else step.next_obs
    assert tuple(last["cam"].shape[1:]) == (3, 4, 1) and int(last["cam"][0, 0, 0, 0]) == 2
    assert last["cam"].dtype == (torch.uint8 if env.tensor else np.uint8)
    assert float(last["speed"][0, 0]) == 2
