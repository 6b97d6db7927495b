"""Bad numbers from environments: found, located, and handled by every rule, before statistics and buffers see them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.faults.broken import INF, NAN, Echo, Sim, good, trainer_of, two
from uniarena import Agent, make_env
from uniarena.batch import Batch, Rollout
from uniarena.ops.finite import beyond, bounded, describe_beyond, largest_within, magnitudes
from uniarena.ops.returns import gae, next_values, trace_ends
from uniarena.optim import NonFiniteError
from uniarena.trainer.guard.experience import locate, spoilt, without

LEARNERS = ["ppo", "dqn", "sac"]


def test_the_operations_by_hand():
    x = torch.tensor([[1.0, -2.0], [NAN, 3.0], [-INF, 1e30]])
    assert magnitudes([x[:1], x[:2], x[2:], x[:1].double()]) == pytest.approx(
        [2.0, NAN, INF, 2.0], nan_ok=True
    )
    assert beyond(x, 10.0).tolist() == [[False, False], [True, False], [True, True]]
    assert largest_within(x, 10.0) == 3.0 and largest_within(x[2:], 10.0) == 0.0
    assert bounded(x, 10.0, 3.0).tolist() == [[1.0, -2.0], [0.0, 3.0], [-3.0, 3.0]]
    assert describe_beyond(x, 10.0) == "nan at [1, 0]"
    assert describe_beyond(x[2, 1:], 10.0) == "1e+30 at [0] (beyond max_abs=10)"


def rollout(steps: int = 6, ends: tuple[int, ...] = (2,)) -> Rollout:
    """One column: observation t + 1 in row t; truncated after `ends`, with final observation 100 + t."""
    t = torch.arange(steps)
    over = torch.isin(t, torch.tensor(ends))[:, None]
    first = torch.cat([torch.tensor([[True]]), over])
    rows = Batch(
        (steps, 1),
        obs=(t + 1.0)[:, None, None],
        action=torch.zeros(steps, 1),
        reward=torch.ones(steps, 1),
        terminated=torch.zeros(steps, 1, dtype=torch.bool),
        truncated=over,
        is_first=first[:-1],
        valid=torch.ones(steps, 1, dtype=torch.bool),
    )
    at = torch.tensor(ends)
    ended = Batch((len(ends),), t=at, b=torch.zeros_like(at), obs=100.0 + at[:, None])
    last = Batch((1,), obs=torch.tensor([[steps + 1.0]]), is_first=first[-1])
    return Rollout(rows, Batch((1,), is_first=first[0]), last, ended)


@pytest.mark.parametrize(
    ("poison", "left_out", "where", "at"),
    [
        (lambda r: r.rows.reward[1].fill_(NAN), [1, 2], "reward", 1),
        (lambda r: r.rows.obs[1].fill_(NAN), [0, 1, 2], "observation", 1),
        (lambda r: r.rows.obs[0].fill_(NAN), [0, 1, 2], "observation", 0),
        (lambda r: r.rows.obs[3].fill_(INF), [3, 4, 5], "observation", 3),
        (lambda r: r.ended.obs.fill_(1e38), [2], "final observation", 2),
        (lambda r: r.last.obs.fill_(-INF), [5], "observation", 6),
        (lambda r: r.rows.action[4].fill_(NAN), [4, 5], "action", 4),
    ],
    ids=["reward", "obs", "first", "after a reset", "final", "last", "action"],
)
def test_a_spoilt_episode_is_left_out_from_its_first_bad_row(
    poison: Any, left_out: list[int], where: str, at: int
):
    chunk = rollout()
    poison(chunk)
    found = spoilt(chunk, 1e15, None)
    assert found.left_out.flatten().nonzero().flatten().tolist() == left_out
    assert bool(found.barred) == (5 in left_out)
    error = locate(chunk, found, 1e15, 1000)
    assert error is not None and (error.where, error.env, error.env_step) == (where, 0, 1000 + at)
    kept = without(chunk, found.left_out, 1e15)
    # What is left: GAE with V(s) = s and γ = λ = 1 telescopes to rewards plus the value of the row's true successor.
    value, following = next_values(lambda obs: obs[:, 0], kept)
    ones = torch.ones_like(value)
    advantage, _ = gae(kept.rows.reward, value, following, ones, trace_ends(kept.rows), 1.0)
    assert bool(advantage.isfinite().all())
    for t in sorted(set(range(6)) - set(left_out)):
        end = next(e for e in range(t, 6) if e in (2, 5) or e + 1 in left_out)
        then = 102.0 if end == 2 else end + 2.0
        assert advantage[t, 0] == (end - t + 1) + then - (t + 1.0), t


def test_a_barred_column_stays_so_until_its_next_episode():
    chunk = rollout()
    chunk.rows.is_first[0] = False
    found = spoilt(chunk, 1e15, torch.tensor([True]))
    assert found.left_out.flatten().tolist() == [True, True, True, False, False, False]
    assert not bool(found.barred) and locate(chunk, found, 1e15, 0) is None


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "reward": ({"where": "reward"}, "the reward of environment 1 was nan, at step 16"),
    "reward inf": ({"where": "reward", "value": -INF}, "the reward of environment 1 was -inf, at step 16"),
    "obs huge": (
        {"where": "obs", "value": 1e38},
        "the observation of environment 1 was 1e+38 at [1] (beyond max_abs=1e+15), at step 17",
    ),
    "key": (
        {"where": "obs", "keys": True},
        "the observation.seen.symbol of environment 1 was nan at [1], at step 17",
    ),
    "final": (
        {"where": "final", "at": 20},
        "the final observation of environment 1 was nan at [1], at step 19",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_stop_says_where(fault: str):
    spec, message = FAULTS[fault]
    trainer = trainer_of("ppo", two("ppo", **spec))
    with pytest.raises(NonFiniteError) as caught:
        trainer.fit(128)
    assert message in str(caught.value) and caught.value.env == 1
    assert trainer.agent.buffer.size == 0 and good(trainer.agent)


@pytest.mark.parametrize("learner", ["dqn", "sac"])
def test_stop_says_where_with_replay_and_nothing_bad_was_stored(learner: str):
    trainer = trainer_of(learner, two(learner, where="obs", at=37))
    with pytest.raises(NonFiniteError, match="environment 1 was nan") as caught:
        trainer.fit(200)
    assert (
        70 <= caught.value.env_step <= 76
    )  # two environments: the 37th step of one is about the 74th in all
    assert_clean(trainer.agent.buffer)


def assert_clean(buffer: Any) -> None:
    """No observation and no reward in a replay's memory is bad, also where it is never sampled."""
    for _, grid, _ in buffer.ring._writer._obs:
        assert np.isfinite(grid).all() and np.abs(grid).max() < 1e15
    assert np.isfinite(buffer.ring.reward).all()
    batch = buffer.sample(torch.Generator().manual_seed(0), 500)
    for tensor in (batch.obs, batch.next_obs, batch.reward):
        for leaf in tensor.values() if isinstance(tensor, dict) else [tensor]:
            assert isinstance(leaf, dict) or (bool(leaf.isfinite().all()) and float(leaf.abs().max()) < 1e15)


@pytest.mark.parametrize("rule", ["skip", "rollback", "reinit"])
@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("value", [NAN, 1e38], ids=["nan", "huge"])
def test_rows_of_a_spoilt_episode_are_left_out_and_training_goes_on(rule: str, learner: str, value: float):
    spec = {"where": "reward", "at": 47, "value": value}
    trainer = trainer_of(learner, two(learner, **spec), rule)
    trainer.fit(320)
    trainer.close()
    assert good(trainer.agent) and trainer.counters.env_steps == 320
    assert trainer.guard.counts == {"faults": 1, "dropped_rows": 4}  # the 47th step and the last three of 50
    assert trainer.guard.barred is None
    assert trainer.counters.episodes == 31  # of 32; the spoilt one does not count
    if learner != "ppo":
        assert_clean(trainer.agent.buffer)
        # one row a column is still open, and the four are not sampled
        assert trainer.agent.buffer.size == 320 - 4


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("where", ["reward", "obs", "final"])
def test_clip_puts_bounded_numbers_in_place(learner: str, where: str):
    spec = {"where": where, "at": 50, "value": INF}
    trainer = trainer_of(learner, two(learner, **spec), "clip")
    trainer.fit(320)
    trainer.close()
    counts = trainer.guard.counts
    assert good(trainer.agent) and counts["clipped_values"] >= 1 and counts["faults"] == 1
    assert trainer.guard._seen["observation"] == 1.0 and trainer.guard._seen["reward"] <= 2.0
    if learner != "ppo":
        assert_clean(trainer.agent.buffer)
        assert float(np.abs(trainer.agent.buffer.ring.reward).max()) <= trainer.guard._seen["reward"]


def test_clip_leaves_out_what_the_policy_did_on_a_bad_observation():
    trainer = trainer_of("ppo", two("ppo", where="obs", at=47), "clip")
    trainer.fit(320)
    assert (
        good(trainer.agent) and trainer.guard.counts["dropped_rows"] == 1
    )  # log_prob of that one step is NaN


@pytest.mark.parametrize("where", ["obs", "reward", "final"])
@pytest.mark.parametrize("learner", ["ppo", "dqn"])
def test_statistics_see_the_good_rows_alone(where: str, learner: str):
    wrappers = ["normalize_observation", "normalize_reward"]
    specs = two(learner, where=where, at=50 if where == "final" else 47)
    trainer = trainer_of(learner, specs, "skip", wrappers=wrappers)
    trainer.fit(320)
    agent, dropped = trainer.agent, trainer.guard.counts["dropped_rows"]
    assert dropped == {"obs": 4, "reward": 4, "final": 1}[where]
    assert agent.normalizer is not None and agent.reward_scaler is not None
    moments = agent.normalizer.moments
    assert float(moments.count) == 320 - dropped and bool(moments.mean.isfinite().all())
    assert float(agent.reward_scaler.moments.count) == 320 - dropped
    assert bool(agent.reward_scaler.returns.isfinite().all())


def test_bonuses_see_nothing_bad():
    trainer = trainer_of(
        "ppo", two("ppo", where="obs", at=47, every=60), "skip", parts={"intrinsic": {"type": "rnd"}}
    )
    trainer.fit(512)
    (bonus,) = trainer.agent.bonuses
    assert all(
        bool(x.isfinite().all()) for x in (*bonus.parameters(), *bonus.buffers(), bonus.scale._returns)
    )
    assert np.isfinite(trainer.metrics["predictor_loss"]) and trainer.guard.counts["faults"] == 4


@pytest.mark.parametrize("final", ["final_obs", "next_obs"])
@pytest.mark.parametrize("where", ["reward", "obs"])
@pytest.mark.parametrize("learner", ["ppo", "dqn"])
def test_tensor_environments(where: str, final: str, learner: str):
    trainer = trainer_of(
        learner,
        lambda: Sim(where, final),
        "skip",
        settings={"learning_starts": 8} if learner == "dqn" else {"n_steps": 8},
    )
    trainer.fit(96)
    assert good(trainer.agent) and trainer.counters.env_steps == 96
    # the fifth step begins an episode of four rows
    assert trainer.guard.counts == {"faults": 1, "dropped_rows": 4}
    if learner == "dqn":
        assert_clean(trainer.agent.buffer)


@pytest.mark.parametrize("learner", LEARNERS)
def test_it_learns_all_the_same(learner: str):
    trainer = trainer_of(
        learner,
        [lambda: Echo(box=learner == "sac") for _ in range(3)]
        + two(learner, where="reward", at=7, every=13)[1:],
        "skip",
    )
    trainer.fit({"ppo": 2560, "dqn": 1600, "sac": 1200}[learner])
    trainer.close()
    assert trainer.guard.counts["faults"] >= 10
    assert trainer.metrics["return_mean"] > 6.5  # of 10; random actions get 3.3 (Discrete) and 1.7 (Box)


def test_a_run_of_which_nothing_is_left_stops(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("uniarena.trainer.guard.guard.BARREN", 100)
    trainer = trainer_of("ppo", [lambda: Echo("reward", at=1, every=1)], "skip")
    with pytest.raises(NonFiniteError):
        trainer.fit(10_000)
    assert (
        trainer.counters.env_steps == 96 and trainer.counters.updates == 0
    )  # three rollouts, and the fourth is over 100


def test_a_good_run_is_the_same_bit_for_bit_whatever_the_rule():
    runs = []
    for rule in ("stop", "skip", "clip", "rollback", "reinit"):
        trainer = trainer_of("ppo", two("ppo"), rule)
        trainer.fit(128)
        runs.append(torch.cat([p.detach().flatten() for p in trainer.agent.model.parameters()]))
        assert not trainer.guard.counts
    assert all(torch.equal(runs[0], other) for other in runs)


def test_act_names_the_key():
    agent = Agent.assemble(make_env(lambda: Echo(keys=True)))
    obs = {"one": np.ones(3, np.float32), "seen": {"symbol": np.array([0, NAN, 0], np.float32)}}
    with pytest.raises(ValueError, match=r"observation 'seen\.symbol' holds nan at \[1\]"):
        agent.act(obs)
