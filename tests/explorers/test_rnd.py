"""Random network distillation on rollouts built by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from tests.ops.rollouts import counter, dense, random_rollout
from uniarena.batch import Batch, Rollout
from uniarena.config import ConfigError, parse
from uniarena.explorers.bonuses.rnd import RND, RNDConfig
from uniarena.optim import ScheduleConfig

LINE = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def rnd(seed: int = 0, space: spaces.Space[Any] = LINE, **fields: Any) -> RND:
    return RND(
        space,
        spaces.Discrete(2),
        RNDConfig(**{"feature_dim": 16, "hidden_sizes": (32,), **fields}),
        torch.Generator().manual_seed(seed),
    )


def points(values: Tensor, columns: int = 1) -> Rollout:
    """A rollout without ends whose successors are `values` in order."""
    steps = len(values) // columns
    obs = torch.cat([torch.zeros(1, columns, 1), values.reshape(steps, columns, 1)])
    no = torch.zeros(steps, columns, dtype=torch.bool)
    rows = Batch(
        (steps, columns),
        obs=obs[:-1],
        reward=torch.zeros(steps, columns),
        terminated=no,
        truncated=no,
        is_first=no,
        valid=~no,
    )
    return Rollout(
        rows, Batch((columns,), is_first=no[0]), Batch((columns,), obs=obs[-1], is_first=no[0]), None
    )


def test_the_bonus_is_of_the_true_next_observation() -> None:
    # Episodes of 2: successors 1, 2 (final), 1, 2, …; equal successors get equal bonuses, and 0 (only reset
    # to) none.
    bonus = rnd(scale="fixed").bonus(counter(8, 2, "truncation"))[:, 0]
    assert torch.equal(bonus[0::2], bonus[:1].expand(4)) and torch.equal(bonus[1::2], bonus[1:2].expand(4))
    assert bonus[0].item() != bonus[1].item()


def test_dense_and_listed_successors_give_the_same() -> None:
    rollout, _ = random_rollout(0, 20, 3)
    assert torch.equal(rnd().bonus(rollout), rnd().bonus(dense(rollout)))


def test_rows_without_a_known_successor_or_that_only_reset_get_nothing() -> None:
    rollout, _ = random_rollout(1, 30, 3, next_step=True)
    bonus = rnd().bonus(rollout)
    assert bonus[~rollout.rows.valid].abs().max().item() == 0.0 and bool(
        (bonus[rollout.rows.valid] > 0).all()
    )
    lost = counter(10, 5, "truncation", has_final_obs=False)
    assert (rnd().bonus(lost)[:, 0] > 0).tolist() == [True] * 4 + [False] + [True] * 4 + [False]


@pytest.mark.parametrize("scale", ["running_std", "learned", "fixed"])
def test_the_known_becomes_dull_and_the_new_stays_bright(scale: str) -> None:
    bonus = rnd(scale=scale, learning_rate=1e-3, update_proportion=1.0, observation_clip=50.0)
    draw = torch.Generator().manual_seed(5)
    familiar = points(torch.randn(256, generator=draw))
    first = bonus.bonus(familiar).mean().item()
    for _ in range(60):
        bonus.bonus(familiar)
        metrics = bonus.learn(familiar)
    mixed = torch.cat([torch.randn(200, generator=draw), torch.full((8,), 4.0)])
    after = bonus.bonus(points(mixed))[:, 0]
    assert after[-8:].mean().item() > 10.0 * after[:200].mean().item()
    assert math.isfinite(first) and metrics["predictor_loss"].item() > 0.0


def test_running_std_by_hand() -> None:
    # Errors 1, 2, 3 of one column, γ 0.5: running sums 1, 2.5, 4.25; mean 2.5833, variance 1.7639, std
    # 1.3281.
    bonus = rnd(gamma=0.5)
    errors = torch.tensor([[1.0], [2.0], [3.0]])
    valid = torch.ones(3, 1, dtype=torch.bool)
    assert bonus.scale._divisor(errors, valid).item() == pytest.approx(1.3281, abs=1e-4)
    # The sum carries on over the chunk: 0.5·4.25 + 1 = 3.125. All four: mean 2.71875, variance 1.3779, std
    # 1.1739.
    assert bonus.scale._divisor(torch.ones(1, 1), valid[:1]).item() == pytest.approx(1.1739, abs=1e-4)


def test_the_learned_scale_moves_to_the_mean_error() -> None:
    bonus = rnd(scale="learned", learning_rate=1e-12, scale_learning_rate=0.05, update_proportion=1.0)
    rollout = points(torch.linspace(-2, 2, 256))
    assert bonus.bonus(rollout).mean().item() == pytest.approx(1.0, rel=1e-3), (
        "it starts at the first chunk's mean"
    )
    with torch.no_grad():
        bonus.scale.log_scale += 1.0
    for _ in range(150):
        bonus.learn(rollout)
    assert bonus.bonus(rollout).mean().item() == pytest.approx(1.0, abs=0.1)


def test_share_and_period_of_training() -> None:
    bonus = rnd(update_proportion=0.25, update_period=3, batch_size=64)
    rollout = points(torch.randn(1024, generator=torch.Generator().manual_seed(0)), columns=4)
    bonus.bonus(rollout)
    trained = []
    for _ in range(6):
        before = bonus._optimizer.torch.state_dict()["state"].get(0, {}).get("step", torch.zeros(())).item()
        metrics = bonus.learn(rollout)
        after = bonus._optimizer.torch.state_dict()["state"].get(0, {}).get("step", torch.zeros(())).item()
        trained.append(after - before)
        assert ("predictor_loss" in metrics) == (after > before)
        assert {"intrinsic_mean", "intrinsic_std"} <= set(metrics)
    assert trained == [4.0, 0.0, 0.0, 4.0, 0.0, 0.0]  # a quarter of 1,024 rows in steps of 64


def test_the_target_never_learns_and_differs_from_the_predictor() -> None:
    bonus = rnd()
    before = {name: p.clone() for name, p in bonus.target.named_parameters()}
    rollout = points(torch.randn(64, generator=torch.Generator().manual_seed(0)))
    bonus.bonus(rollout)
    bonus.learn(rollout)
    assert all(torch.equal(before[name], p) for name, p in bonus.target.named_parameters())
    deepest = list(bonus.predictor.parameters())
    assert len(deepest) == len(before) + 4


def test_scale_of_observations_does_not_matter() -> None:
    values = torch.randn(128, generator=torch.Generator().manual_seed(0))
    small, large = rnd().bonus(points(values)), rnd().bonus(points(values * 1e4 + 3e5))
    torch.testing.assert_close(small, large, rtol=0.05, atol=0.05)


def test_weight_follows_its_schedule() -> None:
    assert rnd(reward_scale=0.01).weight(0.7) == 0.01
    fading = rnd(reward_scale=ScheduleConfig(start=1.0, end=0.0))
    assert [fading.weight(p) for p in (0.0, 0.25, 1.0)] == [1.0, 0.75, 0.0]


def test_same_seed_same_networks_and_the_global_stream_is_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    one, two, other = rnd(1), rnd(1), rnd(2)
    assert torch.equal(torch.rand(4), expected)
    rollout = points(torch.linspace(-1, 1, 16))
    assert torch.equal(one.bonus(rollout), two.bonus(rollout))
    assert not torch.equal(one.bonus(rollout), other.bonus(rollout))


@pytest.mark.parametrize("scale", ["running_std", "learned"])
def test_saved_state_continues_bit_for_bit(scale: str) -> None:
    rollouts = [random_rollout(k, 24, 3)[0] for k in range(6)]

    def run(bonus: RND, chunks: list[Rollout]) -> list[Tensor]:
        out = []
        for rollout in chunks:
            out.append(bonus.bonus(rollout))
            out += bonus.learn(rollout).values()
        return out

    fields: dict[str, Any] = {"scale": scale, "update_period": 2, "batch_size": 8}
    through = rnd(0, **fields)
    run(through, rollouts[:3])
    expected = run(through, rollouts[3:])
    first, second = rnd(0, **fields), rnd(1, **fields)
    run(first, rollouts[:3])
    second.load_state_dict(first.state_dict())
    actual = run(second, rollouts[3:])
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    for a, b in zip(second.state_dict().values(), through.state_dict().values(), strict=True):
        assert not isinstance(a, Tensor) or torch.equal(a, b)


def test_dictionaries_and_discrete_observations() -> None:
    space = spaces.Dict({"a": LINE, "n": spaces.Discrete(3), "action_mask": spaces.MultiBinary(2)})
    rollout, _ = random_rollout(0, 10, 2)

    def tree(obs: Tensor) -> dict[str, Tensor]:
        lead = obs.shape[:-1]
        return {
            "a": obs,
            "n": torch.zeros(lead, dtype=torch.int64),
            "action_mask": torch.ones(*lead, 2, dtype=torch.bool),
        }

    assert rollout.ended is not None
    nested = Rollout(
        rollout.rows.replace(obs=tree(rollout.rows.obs)),
        rollout.start,
        rollout.last.replace(obs=tree(rollout.last.obs)),
        rollout.ended.replace(obs=tree(rollout.ended.obs)),
    )
    bonus = rnd(space=space)
    assert bool((bonus.bonus(nested) > 0).all()) and "predictor_loss" in bonus.learn(nested)
    discrete = rnd(space=spaces.Discrete(3))
    assert discrete.normalizer is None
    ints = dataclasses.replace(
        counter(4, 10, "truncation"),
        rows=counter(4, 10, "truncation").rows.replace(obs=torch.tensor([[0], [1], [2], [0]])),
        last=Batch((1,), obs=torch.tensor([1]), is_first=torch.tensor([False])),
    )
    assert bool((discrete.bonus(ints) > 0).all())


@pytest.mark.parametrize(
    ("field", "value"), [("update_proportion", 0.0), ("update_proportion", 1.5), ("update_period", 0)]
)
def test_impossible_values_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match="expected") as caught:
        parse(RND.Config, {field: value}, "agent.intrinsic")
    assert caught.value.path == f"agent.intrinsic.{field}"
