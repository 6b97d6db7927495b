"""Curiosity, counts and information gain, on rows made by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from uniarena import Agent, make_env, registry
from uniarena.batch import Batch, Rollout
from uniarena.config import ConfigError, parse
from uniarena.explorers.bonuses.icm import action_encoder, action_loss
from uniarena.explorers.bonuses.sampled import learned, taken_in

LINE = spaces.Box(-np.inf, np.inf, (1,), np.float32)
CELLS = spaces.Discrete(20)
TWO = spaces.Discrete(2)
NEW = ("icm", "count", "information_gain")
SMALL = {"feature_dim": 8, "hidden_sizes": (16,)}


def make(name: str, space: spaces.Space[Any] = LINE, actions: spaces.Space[Any] = TWO, **fields: Any) -> Any:
    kind = registry.lookup("bonus", name)
    small = {} if name == "count" else SMALL
    return kind(
        space, actions, parse(kind.Config, {**small, **fields}, "x"), torch.Generator().manual_seed(0)
    )


def rows(obs: Tensor, action: Tensor, next_obs: Tensor) -> Batch:
    yes = torch.ones(len(obs), dtype=torch.bool)
    return Batch((len(obs),), obs=obs, action=action, next_obs=next_obs, valid=yes)


def chunk(places: list[int]) -> Rollout:
    """One column that walks from place to place without an end."""
    walk = torch.tensor(places)[:, None]
    no = torch.zeros(len(places) - 1, 1, dtype=torch.bool)
    fields = {"obs": walk[:-1], "action": torch.zeros_like(walk[:-1]), "reward": no.float()}
    steps = Batch(tuple(no.shape), fields | {"terminated": no, "truncated": no, "is_first": no, "valid": ~no})
    return Rollout(steps, Batch((1,), is_first=no[0]), Batch((1,), obs=walk[-1], is_first=no[0]), None)


# -- counts ------------------------------------------------------------------------------------------------------------
def test_the_nth_visit_is_worth_one_over_the_root_of_n() -> None:
    count = make("count", CELLS)
    first = chunk([0, 1, 2, 1])
    count.observe(first)
    assert count.bonus(first).flatten().tolist() == pytest.approx([1 / math.sqrt(2), 1.0, 1 / math.sqrt(2)])
    second = chunk([1, 1, 1])
    count.observe(second)
    assert count.bonus(second).flatten().tolist() == pytest.approx([0.5, 0.5])
    assert count.learn(second)["places"].item() == 2
    never = count.bonus_of_rows(rows(torch.tensor([0]), torch.tensor([0]), torch.tensor([7])))
    assert never.tolist() == [1.0], "a place that was never counted is as good as one seen for the first time"


def test_rows_that_do_not_count_have_neither_a_visit_nor_a_bonus() -> None:
    count = make("count", CELLS)
    cut = chunk([0, 1, 1])
    cut.rows.valid[0] = False
    count.observe(cut)
    assert count.bonus(cut).flatten().tolist() == [0.0, 1.0]


def test_every_place_has_a_hash_of_its_own_and_distance_from_the_mean_counts() -> None:
    codes = make("count", CELLS).codes(torch.arange(20))
    assert len(codes.unique()) == 20
    line = make("count", LINE, code_bits=62)
    assert len(line.codes(torch.tensor([[0.5], [1.0], [2.0], [4.0]])).unique()) == 4


def test_a_place_keeps_its_hash_once_the_statistics_stand_still() -> None:
    count = make("count", spaces.Box(-np.inf, np.inf, (1,), np.float32), statistics_rows=4)

    def far(at: float) -> Rollout:
        whole = chunk([0, 1, 2, 3, 4])
        rows = whole.rows.replace(obs=whole.rows.obs.float()[..., None] + at)
        return Rollout(
            rows, whole.start, whole.last.replace(obs=whole.last.obs.float()[..., None] + at), None
        )

    count.observe(far(0.0))
    place = torch.tensor([[2.5]])
    before = count.codes(place)
    count.observe(far(1000.0))
    assert torch.equal(count.codes(place), before)


def test_counting_every_second_chunk() -> None:
    count = make("count", CELLS, update_period=2)
    for _ in range(4):
        count.observe(chunk([0, 1]))
    assert count.bonus(chunk([0, 1])).item() == pytest.approx(1 / math.sqrt(2))


# -- curiosity ---------------------------------------------------------------------------------------------------------
def test_what_a_guessed_action_costs_by_hand() -> None:
    both = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (2,), np.float32)})
    encoder = action_encoder(both)
    guess = torch.tensor([[0.0, math.log(3.0), 0.5, -1.0]])  # chances 1/4 and 3/4; then two numbers
    action = {"a": torch.tensor([1]), "b": torch.tensor([[0.5, 1.0]])}
    expected = (-math.log(0.75) + 0.0 + 4.0) / 3.0
    assert action_loss(encoder, guess, action).item() == pytest.approx(expected)


def test_bits_cost_their_own_cross_entropy() -> None:
    encoder = action_encoder(spaces.MultiBinary(2))
    cost = action_loss(encoder, torch.tensor([[0.0, math.log(3.0)]]), torch.tensor([[1, 0]]))
    assert cost.item() == pytest.approx((math.log(2.0) + math.log(4.0)) / 2.0)


def test_only_the_inverse_model_moves_the_features() -> None:
    draw = torch.Generator().manual_seed(1)
    batch = rows(torch.randn(32, 1, generator=draw), torch.arange(32) % 2, torch.randn(32, 1, generator=draw))
    found = []
    for share in (0.2, 0.6):
        icm = make("icm", forward_share=share)
        icm.loss(batch)[0].backward()
        found.append(torch.cat([p.grad.flatten() for p in icm.features.parameters()]))
    torch.testing.assert_close(found[0], 2.0 * found[1])  # (1 − 0.2) / (1 − 0.6)
    assert found[0].abs().sum() > 0


@pytest.mark.parametrize("name", ["icm", "information_gain"])
def test_what_is_practised_becomes_dull_and_the_rest_stays_bright(name: str) -> None:
    bonus = make(name, CELLS, update_proportion=1.0, learning_rate=3e-3, scale="fixed", batch_size=64)
    known = torch.arange(256) % 10
    practised = rows(known, known % 2, (known + 1) % 10)
    other = rows(known + 10, known % 2, (known + 1) % 10 + 10)
    for _ in range(100):
        bonus.bonus_of_rows(practised)
        metrics = bonus.learn(practised)
    assert bonus.bonus_of_rows(other).mean() > 5.0 * bonus.bonus_of_rows(practised).mean()
    assert metrics["predictor_loss"].item() > 0.0


def test_noise_keeps_no_information_but_keeps_an_error() -> None:
    draw = torch.Generator().manual_seed(2)
    shares = {}
    for name in ("icm", "information_gain"):
        # In the noisy half the next place is drawn anew; in the other it follows from the last.
        bonus = make(name, CELLS, update_proportion=1.0, learning_rate=3e-3, scale="fixed", batch_size=64)
        calm, start = torch.arange(256) % 10, []
        for _ in range(150):
            noise = torch.randint(10, (256,), generator=draw) + 10
            half = torch.arange(256) < 128
            obs = torch.where(half, calm, 15)
            following = torch.where(half, (calm + 1) % 10, noise)
            batch = rows(obs, calm % 2, following)
            found = bonus.bonus_of_rows(batch)
            start.append(found[128:].mean().item())
            bonus.learn(batch)
        shares[name] = start[-1] / start[0]
    assert shares["information_gain"] < 0.2 * shares["icm"]


# -- information gain --------------------------------------------------------------------------------------------------
def test_disagreement_by_hand() -> None:
    gain = make("information_gain", members=2)
    with torch.no_grad():
        for p in gain.models.parameters():
            p.zero_()
        gain.models.layers[-1].bias[0] = 3.0
        gain.models.layers[-1].bias[1] = 1.0
    batch = rows(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), torch.zeros(4, 1))
    assert gain.novelty(batch).tolist() == [1.0] * 4  # members say 3 and 1: variance 1


# -- all of them -------------------------------------------------------------------------------------------------------
NESTED = spaces.Dict(
    {
        "body": spaces.Dict({"at": spaces.Box(-1, 1, (3,), np.float64), "task": spaces.Discrete(4, start=2)}),
        "cam": spaces.Box(0, 255, (36, 36, 3), np.uint8),
    }
)
HYBRID = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([2, 3])))


def nested_rows(count: int) -> Batch:
    def observe(seed: int) -> Any:
        draw = torch.Generator().manual_seed(seed)
        body = {"at": torch.rand(count, 3, generator=draw).double(), "task": torch.arange(count) % 4 + 2}
        return {
            "body": body,
            "cam": torch.randint(256, (count, 36, 36, 3), generator=draw, dtype=torch.uint8),
        }

    action = (torch.arange(count) % 3, torch.zeros(count, 2), torch.zeros(count, 2, dtype=torch.int64))
    yes = torch.ones(count, dtype=torch.bool)
    return Batch((count,), obs=observe(0), action=action, next_obs=observe(1), valid=yes)


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("scale", ["running_std", "learned", "fixed"])
def test_any_space_any_scale_and_the_state_goes_on_exactly(name: str, scale: str) -> None:
    one, two = make(name, NESTED, HYBRID, scale=scale), make(name, NESTED, HYBRID, scale=scale)
    batch = nested_rows(6)
    for _ in range(3):
        one.bonus_of_rows(batch)
        one.learn(batch)
    with torch.no_grad():
        for p in two.parameters():
            p.add_(1.0)
    two.load_state_dict(one.state_dict())
    for _ in range(2):
        assert torch.equal(one.bonus_of_rows(batch), two.bonus_of_rows(batch))
        mine, theirs = one.learn(batch), two.learn(batch)
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)
        assert all(bool(value.isfinite()) for value in mine.values())
    assert bool(one.bonus_of_rows(batch).isfinite().all())


@pytest.mark.parametrize("name", NEW)
def test_first_weights_come_from_the_bonus_own_generator(name: str) -> None:
    torch.manual_seed(1)
    one = make(name, NESTED, HYBRID)
    before = torch.random.get_rng_state()
    torch.manual_seed(2)
    two = make(name, NESTED, HYBRID)
    pairs = zip((*one.parameters(), *one.buffers()), (*two.parameters(), *two.buffers()), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    torch.manual_seed(1)
    assert torch.equal(torch.random.get_rng_state(), before)


class Fixed(nn.Module):
    def __init__(self, weight: float, value: float) -> None:
        super().__init__()
        self.factor, self.value = weight, value

    def weight(self, progress: float) -> float:
        return self.factor

    def bonus(self, rollout: Rollout) -> Tensor:
        return torch.full(rollout.rows.shape, self.value)

    def learn(self, rows: Any) -> dict[str, Tensor]:
        return {"seen": torch.tensor(self.value)}


def test_several_are_summed_by_weight_and_report_apart() -> None:
    bonuses = [Fixed(0.5, 4.0), Fixed(2.0, 1.0), Fixed(1.0, 0.25)]
    paid = taken_in(chunk([0, 1, 2]), bonuses, 0.0, paid=True)
    assert paid.rows.bonus.flatten().tolist() == [4.25, 4.25]
    assert "bonus" not in taken_in(chunk([0, 1, 2]), bonuses, 0.0, paid=False).rows
    names = ["rnd", "icm", "icm"]
    assert list(learned(names, bonuses, None)) == ["rnd/seen", "icm/seen", "icm.1/seen"]
    assert list(learned(names[:1], bonuses[:1], None)) == ["seen"]


def test_counting_happens_when_experience_comes_in_also_with_replay() -> None:
    env = make_env("CartPole-v1", num_envs=2)
    agent = Agent.assemble(
        env, {"type": "dqn", "learning_starts": 0, "batch_size": 8}, parts={"intrinsic": {"type": "count"}}
    )
    from uniarena.sampling.local import LocalSampler

    sampler = LocalSampler(env, agent.streams)
    sampler.publish(agent.actor, 0)
    agent.observe(sampler.collect(steps=40))
    agent.observe(sampler.collect(steps=40))
    assert sum(agent.bonuses[0]._counts.values()) == 80
    agent.update(0.0)
    assert sum(agent.bonuses[0]._counts.values()) == 80, "sampling a row again is no visit"
    env.close()


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("icm", "forward_share", 1.0),
        ("count", "code_bits", 63),
        ("count", "statistics_rows", 0),
        ("information_gain", "members", 1),
        ("icm", "update_proportion", 0.0),
    ],
)
def test_settings_out_of_range_are_named(name: str, field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        make(name, **{field: value})
