"""Running statistics: exact moments, frozen until merged, saved exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from uniarena.batch import Batch
from uniarena.config import ConfigError
from uniarena.nets.encoders import image_leaves
from uniarena.nets.normalizer import ObservationNormalizer, RewardScaler

BOX = spaces.Box(-np.inf, np.inf, (3,))
NESTED = spaces.Dict(
    {
        "action_mask": spaces.MultiBinary(2),
        "cam": spaces.Box(0, 255, (36, 36, 3), np.uint8),
        "pos": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
        "speed": spaces.Box(-1.0, 1.0, ()),
        "task": spaces.Discrete(4),
    }
)


def valid(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.bool)


def test_merging_in_pieces_gives_the_moments_of_the_whole():
    rows = 1e6 + 3.0 * torch.randn(1000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norm = ObservationNormalizer(BOX)
    for piece in (rows[:1], rows[1:400], rows[400:]):
        norm.accumulate(piece, valid(len(piece)))
    norm.merge()
    torch.testing.assert_close(norm.moments.mean, rows.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(norm.moments.variance(), rows.var(0, unbiased=False), rtol=1e-9, atol=0)


def test_normalised_values_by_hand_and_clipped():
    norm = ObservationNormalizer(spaces.Box(-9.0, 9.0, (1,)), clip=2.0)
    norm.accumulate(torch.tensor([[1.0], [3.0]]), valid(2))
    norm.merge()
    out = norm(torch.tensor([[1.0], [2.0], [3.5], [100.0], [-100.0]]))
    torch.testing.assert_close(out.flatten(), torch.tensor([-1.0, 0.0, 1.5, 2.0, -2.0]))


def test_statistics_stand_still_until_merged():
    norm = ObservationNormalizer(BOX)
    obs = 5 + torch.randn(4, 2, 3)
    before = norm(obs)
    torch.testing.assert_close(before, obs)  # nothing counted yet: mean 0, variance 1
    norm.accumulate(obs, valid(4, 2))
    assert torch.equal(norm(obs), before)
    norm.merge()
    assert norm(obs).mean().abs() < 1e-5
    norm.merge()  # nothing pending: nothing moves
    assert norm.moments.count == 8


def test_invalid_and_non_finite_rows_do_not_count():
    norm = ObservationNormalizer(BOX)
    obs = torch.randn(6, 3)
    spoiled = torch.cat([obs, torch.full((1, 3), 1e9), torch.full((1, 3), torch.nan)])
    flags = torch.tensor([True] * 6 + [False, True])
    norm.accumulate(spoiled, flags)
    norm.merge()
    assert norm.moments.count == 6
    torch.testing.assert_close(norm.moments.mean, obs.double().mean(0))
    norm.accumulate(spoiled, torch.zeros(8, dtype=torch.bool))
    norm.merge()
    assert norm.moments.count == 6 and norm(obs).isfinite().all()


def test_only_float_boxes_are_touched():  # case B20
    norm = ObservationNormalizer(NESTED)
    obs = {
        "task": torch.tensor([1, 2]),
        "pos": torch.randn(2, 2, 2, dtype=torch.float64),
        "cam": torch.ones(2, 36, 36, 3, dtype=torch.uint8),
        "speed": torch.tensor([1.0, 3.0]),
        "action_mask": torch.ones(2, 2, dtype=torch.int8),
    }
    norm.accumulate(obs, valid(2))
    norm.merge()
    out = norm(obs)
    assert list(out) == list(obs)
    for key in ("task", "cam", "action_mask"):
        assert out[key] is obs[key]
    assert out["pos"].shape == (2, 2, 2) and out["pos"].dtype == torch.float32
    torch.testing.assert_close(out["speed"], torch.tensor([-1.0, 1.0]))
    torch.testing.assert_close(norm({**obs, "speed": obs["speed"].expand(5, 2)})["speed"][3], out["speed"])


def test_declared_float_images_are_skipped():
    space = spaces.Dict({"cam": spaces.Box(0.0, 1.0, (3, 8, 8)), "x": spaces.Box(-1.0, 1.0, (2,))})
    from uniarena.nets.encoders import EncoderConfig

    norm = ObservationNormalizer(space, skip=image_leaves(space, EncoderConfig(layout="chw")))
    obs = {"cam": torch.rand(2, 3, 8, 8), "x": torch.randn(2, 2)}
    norm.accumulate(obs, valid(2))
    norm.merge()
    assert norm(obs)["cam"] is obs["cam"] and len(norm.centre) == 2


def test_moving_averages_by_hand():
    norm = ObservationNormalizer(spaces.Box(-np.inf, np.inf, (1,), np.float32), statistics="ema", decay=0.75)
    norm.accumulate(torch.tensor([[1.0], [3.0]]).repeat(128, 1), valid(256))
    norm.merge()
    assert (norm.centre.item(), norm.moments.variance().item()) == (2.0, 1.0)  # the first are taken whole
    norm.accumulate(torch.full((256, 1), 6.0), valid(256))
    norm.merge()
    # ¾·2 + ¼·6 = 3; ¾·1 + ¼·0 + 3/16·(6 − 2)² = 3.75
    assert norm.centre.item() == 3.0 and norm.moments.variance().item() == pytest.approx(3.75)
    norm.accumulate(torch.full((255, 1), 100.0), valid(255))
    norm.merge()
    assert norm.centre.item() == 3.0, "few rows wait for more"
    norm.accumulate(torch.full((1, 1), 100.0), valid(1))
    norm.merge()
    assert norm.centre.item() == pytest.approx(0.75 * 3.0 + 25.0)


@pytest.mark.parametrize("statistics", ["welford", "ema"])
def test_one_wild_episode_moves_the_statistics_little(statistics: str):
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    generator = torch.Generator().manual_seed(0)
    spread = {}
    for outlier in (None, 10.0):
        norm = ObservationNormalizer(space, statistics=statistics, outlier=outlier)
        for _ in range(8):
            norm.accumulate(torch.randn(512, 2, generator=generator), valid(512))
            norm.merge()
        wild = torch.randn(512, 2, generator=generator)
        wild[:50, 0] = 1e6
        norm.accumulate(wild, valid(512))
        norm.merge()
        spread[outlier] = (1.0 / norm.inv_std).tolist()
    assert spread[None][0] > 1e4 and spread[10.0][0] < 2.0
    assert spread[None][1] == pytest.approx(1.0, abs=0.1) == spread[10.0][1]


def test_what_lasts_gets_through_the_bound_on_outliers():
    norm = ObservationNormalizer(
        spaces.Box(-np.inf, np.inf, (1,), np.float32), statistics="ema", decay=0.9, outlier=5.0
    )
    generator = torch.Generator().manual_seed(0)
    for k in range(40):
        shift = 0.0 if k < 5 else 1e3
        norm.accumulate(shift + torch.randn(512, 1, generator=generator), valid(512))
        norm.merge()
    assert norm.centre.item() > 300.0
    norm.accumulate(torch.full((4, 1), torch.nan), valid(4))
    assert norm.pending.count.item() == 0.0, "what is not finite is still left out"


def test_nothing_to_normalise_is_said():
    with pytest.raises(ConfigError, match="no float Box"):
        ObservationNormalizer(spaces.Discrete(3))


def test_the_state_round_trips_exactly_pending_included():
    norm, twin = ObservationNormalizer(BOX), ObservationNormalizer(BOX)
    norm.accumulate(torch.randn(7, 3), valid(7))
    norm.merge()
    norm.accumulate(torch.randn(5, 3), valid(5))
    twin.load_state_dict(norm.state_dict())
    obs = torch.randn(4, 3)
    assert torch.equal(norm(obs), twin(obs))
    norm.merge()
    twin.merge()
    assert torch.equal(norm(obs), twin(obs)) and norm.moments.count == 12


def rows(reward, terminated=None, truncated=None, ok=None) -> Batch:
    reward = torch.as_tensor(reward, dtype=torch.float32)
    flags = [
        torch.zeros(reward.shape, dtype=torch.bool) if f is None else torch.as_tensor(f)
        for f in (terminated, truncated)
    ]
    return Batch(
        reward.shape,
        reward=reward,
        terminated=flags[0],
        truncated=flags[1],
        valid=valid(*reward.shape) if ok is None else ok,
    )


class TestRewardScaler:
    def test_by_hand(self):
        """γ = 0.5, rewards 1, 1, 2: returns 1, 1.5, 2.75."""
        scaler = RewardScaler(1, 0.5)
        scaler.update(rows([[1.0], [1.0], [2.0]]))
        returns = np.array([1.0, 1.5, 2.75])
        assert scaler.moments.mean.item() == pytest.approx(returns.mean())
        assert scaler.scale(torch.tensor([3.0])).item() == pytest.approx(3.0 / returns.std(), rel=1e-6)
        assert scaler.returns.item() == pytest.approx(0.5 * 2.75)

    @pytest.mark.parametrize("end", ["terminated", "truncated"])
    def test_a_return_starts_again_after_an_end(self, end):
        scaler = RewardScaler(2, 0.5)
        scaler.update(rows([[1.0, 1.0], [1.0, 1.0]], **{end: [[True, False], [False, False]]}))
        assert scaler.returns.tolist() == [0.5 * 1.0, 0.5 * 1.5]

    def test_chunks_continue_where_the_last_one_stopped(self):
        reward = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
        whole, parts = RewardScaler(2, 0.9), RewardScaler(2, 0.9)
        whole.update(rows(reward))
        parts.update(rows(reward[:4]))
        saved = RewardScaler(2, 0.9)
        saved.load_state_dict(parts.state_dict())
        saved.update(rows(reward[4:]))
        torch.testing.assert_close(saved.returns, whole.returns)
        torch.testing.assert_close(saved.moments.variance(), whole.moments.variance())

    def test_never_centred_and_clipped(self):
        scaler = RewardScaler(1, 0.0)
        scaler.update(rows([[4.0], [6.0]]))
        torch.testing.assert_close(scaler.scale(torch.tensor([5.0, -50.0])), torch.tensor([5.0, -10.0]))

    def test_nothing_counted_scales_by_one_and_invalid_rows_do_not_count(self):
        scaler = RewardScaler(1, 0.9)
        assert scaler.scale(torch.tensor([2.0])).item() == pytest.approx(2.0)
        scaler.update(rows([[1.0], [torch.nan]], ok=torch.tensor([[True], [False]])))
        assert scaler.moments.count == 1 and scaler.returns.isfinite().all()

    def test_another_number_of_columns_is_refused(self):
        with pytest.raises(ValueError, match="3 columns"):
            RewardScaler(2, 0.9).update(rows(torch.ones(4, 3)))
