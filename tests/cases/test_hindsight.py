"""Cases B34 to B38 and B45 through whole runs: windows, goals, episodes, normalisation, one warm-up."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import uniarena
from tests.fakes.envs import CounterEnv
from tests.fakes.goals import BitFlip, Reach
from tests.learning.tiny import score
from uniarena import Agent, Trainer, checkpoint, make_env
from uniarena.batch import Batch

DQN = {
    "type": "dqn",
    "train_every_env_steps": 4,
    "updates_per_env_step": 0.25,
    "learning_rate": 2e-3,
    "target_update_updates": 50,
    "learning_starts": 200,
    "batch_size": 64,
    "gamma": 0.95,
}


def trained(
    env: Any, steps: int, her: Any, capacity: int = 10_000, kind: str = "replay", **learner: Any
) -> Agent:
    """DQN, with hindsight or without."""
    buffer = {"type": kind, "capacity": capacity, **({} if her is None else {"her": her})}
    explorer = {"type": "epsilon_greedy", "epsilon": {"end": 0.05, "fraction": 0.5}}
    agent = Agent.assemble(
        env,
        {**DQN, **learner},
        policy={"hidden_sizes": [64]},
        parts={"buffer": buffer, "explorer": explorer},
    )
    trainer = Trainer(agent, env)
    trainer.fit(steps)
    trainer.close()
    assert trainer.counters.updates == (trainer.counters.env_steps - DQN["learning_starts"]) // 4  # type: ignore[operator]
    return agent


def success(agent: Agent, bits: int) -> float:
    rate = score(agent, partial(BitFlip, bits), 100).success_rate
    assert rate is not None
    return rate


# -- B37 -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("limits", [(8,), (8, 8), (8, 5), (8, 6, 4, 9)], ids=str)
def test_b37_bit_flip_is_solved_from_any_number_of_environments(limits: tuple[int, ...]) -> None:
    """Case B37: 8 bits within 4,000 steps, from one environment, and from several with episodes of other lengths."""
    env = make_env([partial(BitFlip, 8, limit) for limit in limits])
    assert success(trained(env, 4000, {}), 8) >= 0.9


def test_b37_without_hindsight_it_is_not() -> None:
    """Case B37: so it is hindsight that solves it."""
    assert success(trained(make_env(partial(BitFlip, 8), 2), 4000, None), 8) <= 0.2


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize(("kind", "n_step"), [("replay", 1), ("prioritized", 1), ("replay", 2)])
def test_b37_every_strategy_with_priorities_and_windows(strategy: str, kind: str, n_step: int) -> None:
    """Case B37: what is combined with hindsight."""
    agent = trained(make_env(partial(BitFlip, 6), 2), 6000, {"strategy": strategy}, kind=kind, n_step=n_step)
    assert success(agent, 6) >= 0.9


# -- B35, B36 ------------------------------------------------------------------------------------------------------
class Numbered(CounterEnv):
    """A counter as a goal environment: what was reached is `1000 · episode + step`, what is wanted is out of reach."""

    def __init__(self, *lengths: int) -> None:
        super().__init__(list(lengths), "truncation")
        goal = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.observation_space = spaces.Dict({"achieved_goal": goal, "desired_goal": goal})

    def _obs(self) -> Any:
        now = np.array([1000 * self.episode + self.t], np.float32)
        return {"achieved_goal": now, "desired_goal": np.array([-1.0], np.float32)}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.where(achieved[..., 0] == desired[..., 0], 0.0, -1.0)


LENGTHS = ((10, 20), (7, 3, 31))


def check_goals(batch: Batch, strategy: str, n: int, columns: int) -> None:
    """Every goal was reached in the transition's own episode, and where it matters not before it."""
    state, goal = batch["obs"]["achieved_goal"][:, 0], batch["obs"]["desired_goal"][:, 0]
    after = batch["next_obs"]["achieved_goal"][:, 0]
    assert torch.equal(goal // 1000, state // 1000), "of the same episode"
    assert torch.equal(after, state + batch["n"]) and (batch["n"] <= n).all()
    assert torch.equal(batch["next_obs"]["desired_goal"], batch["obs"]["desired_goal"])
    lengths = [LENGTHS[int(i) % columns] for i in batch["index"]]
    length = torch.tensor([ls[int(s) // 1000 % len(ls)] for ls, s in zip(lengths, state, strict=True)])
    assert (goal % 1000 <= length).all() and (goal % 1000 >= 1).all()
    if strategy == "future":
        assert (goal > state).all(), "not before the transition"
    assert (batch["discount"] > 0).all(), "a time limit goes on"


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("kind", ["replay", "prioritized"])
@pytest.mark.parametrize(("columns", "n"), [(1, 1), (2, 1), (2, 3)])
def test_b35_b36_goals_of_a_run_through_a_small_ring_with_a_reload(
    strategy: str, kind: str, columns: int, n: int, tmp_path: Path
) -> None:
    """Cases B35 and B36: 1,000 steps through a ring of 15 rows a column; saved in the middle of episodes, and on."""

    def made(folder: str) -> tuple[Trainer, list[Batch]]:
        env = make_env([partial(Numbered, *lengths) for lengths in LENGTHS[:columns]])
        buffer = {"type": kind, "capacity": 15 * columns, "her": {"strategy": strategy, "ratio": 1.0}}
        learner = {**DQN, "learning_starts": 8, "n_step": n, "batch_size": 32}
        agent = Agent.assemble(env, learner, policy={"hidden_sizes": [4]}, parts={"buffer": buffer})
        seen: list[Batch] = []
        inner = agent.learner.update
        agent.learner.update = lambda batch: seen.append(batch) or inner(batch)  # type: ignore[method-assign]
        return Trainer(agent, env, run_dir=tmp_path / folder), seen

    whole, batches = made("whole")
    whole.fit(504)  # no end of an episode of any column
    whole.save()
    state, _ = checkpoint.load(tmp_path / "whole" / "checkpoints" / str(whole.counters.env_steps))
    again, others = made("again")
    again.load_state_dict(state)
    before = len(batches)
    for trainer in (whole, again):
        trainer.fit(1000)
        trainer.close()
    for batch in batches[::10]:
        check_goals(batch, strategy, n, columns)
    assert len(others) == len(batches) - before > 100
    for one, other in zip(batches[before:], others, strict=True):
        assert torch.equal(one["obs"]["desired_goal"], other["obs"]["desired_goal"])
        assert torch.equal(one["index"], other["index"]) and torch.equal(one["reward"], other["reward"])


# -- B34 -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [1, 2, 5, 12])
@pytest.mark.parametrize("kind", ["replay", "prioritized"])
@pytest.mark.parametrize("end", ["termination", "truncation", "running"])
def test_b34_windows_of_a_ring_that_is_hardly_used(end: Any, kind: str, n: int) -> None:
    """Case B34: one episode of 10 steps in a ring of 10,000; a window ends with the last step that there was."""
    env = make_env(
        partial(CounterEnv, 10 if end != "running" else 11, end if end != "running" else "termination")
    )
    buffer = {"type": kind, "capacity": 10_000}
    agent = Agent.assemble(
        env, {**DQN, "n_step": n, "gamma": 0.9, "learning_starts": 1000}, parts={"buffer": buffer}
    )
    trainer = Trainer(agent, env)
    trainer.fit(10)
    trainer.close()
    batch = agent.buffer.sample(torch.Generator().manual_seed(0), 400)
    start = batch["obs"][:, 0]
    assert set(start.tolist()) == set(range(10))
    steps = torch.clamp(10 - start, max=n)
    assert torch.equal(batch["n"].float(), steps) and torch.equal(batch["next_obs"][:, 0], start + steps)
    assert torch.allclose(batch["reward"], (1 - 0.9**steps) / 0.1)
    over = (start + steps == 10) & (end == "termination")
    assert torch.allclose(batch["discount"], torch.where(over, 0.0, 0.9**steps))


# -- B38 -----------------------------------------------------------------------------------------------------------
class FarReach(Reach):
    """The same in units of a hundredth, far from the origin."""

    def __init__(self) -> None:
        super().__init__()
        wide = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        near: Any = self.observation_space
        self.observation_space = spaces.Dict({**near.spaces, "achieved_goal": wide, "desired_goal": wide})

    def _obs(self) -> Any:
        obs = super()._obs()
        return {**obs, **{k: 500 + 100 * obs[k] for k in ("achieved_goal", "desired_goal")}}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return super().compute_reward(np.asarray(achieved) / 100, np.asarray(desired) / 100, info)


@pytest.mark.parametrize(
    "her", [None, {}, {"strategy": "final", "ratio": 1.0}], ids=["plain", "future", "final"]
)
@pytest.mark.parametrize("learner", ["sac", "td3"])
def test_b38_both_sides_of_a_replayed_transition_are_normalised(learner: str, her: Any) -> None:
    """Case B38: policy, critics and targets see replay by the running statistics; replay itself stays raw."""
    env = make_env(FarReach, 2, wrappers=["normalize_observation"])
    buffer = {"capacity": 500, **({} if her is None else {"her": her})}
    section = {"type": learner, "learning_starts": 20, "batch_size": 16}
    agent = Agent.assemble(env, section, policy={"hidden_sizes": [8]}, parts={"buffer": buffer})
    raw: list[Batch] = []
    given: list[Batch] = []
    update, loss = agent.learner.update, agent.learner.value_loss
    agent.learner.update = lambda batch: raw.append(batch) or update(batch)  # type: ignore[method-assign]
    agent.learner.value_loss = lambda batch: given.append(batch) or loss(batch)
    assert agent.normalizer is not None
    trainer = Trainer(agent, env)
    trainer.fit(60)
    sample = agent.buffer.sample(torch.Generator().manual_seed(0), 64)
    trainer.close()
    scale = agent.normalizer
    for name in ("achieved_goal", "desired_goal"):
        for side in ("obs", "next_obs"):
            values = sample[side][name]
            assert values.min() > 300 and values.max() < 700, "raw"
            assert scale(sample[side])[name].abs().max() < 5, "by the statistics"
    assert len(raw) == len(given) > 20
    # every update saw what the statistics of its time made of the raw rows: a shift and a scale, the same on both sides
    for rows, seen in list(zip(raw, given, strict=True))[-5:]:
        for name in ("achieved_goal", "desired_goal"):
            x = torch.cat([rows[side][name] for side in ("obs", "next_obs")])
            y = torch.cat([seen[side][name] for side in ("inputs", "next_inputs")])
            assert y.abs().max() < 5 and x.min() > 300
            for d in range(2):
                slope = (y[:, d] - y[0, d]) / (x[:, d] - x[0, d]).where(x[:, d] != x[0, d], torch.nan)
                known = slope[~slope.isnan()]
                assert len(known) and torch.allclose(known, known[0], rtol=1e-2)


# -- B45 -----------------------------------------------------------------------------------------------------------
class Warmth:
    """Whether the explorer acted at random, chunk by chunk."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bool]] = []

    def on_batch_collected(self, trainer: Trainer, event: Any) -> None:
        self.seen.append((trainer.counters.env_steps, trainer.agent.explorer.warming_up))


def test_b45_one_call_continues_and_the_warm_up_does_not_come_again(tmp_path: Path) -> None:
    """Case B45, the user's side of it: `resume(run)` is all, and it is the agent on disk that goes on."""
    config = {
        "environment": {"id": "Pendulum-v1", "max_episode_steps": 20},
        "learner": {"type": "sac", "learning_starts": 30, "batch_size": 8},
        "agent": {"policy": {"hidden_sizes": [8]}, "buffer": {"capacity": 200}},
        "training": {
            "total_timesteps": 80,
            "save_every_env_steps": 40,
            "n_eval_episodes": 1,
            "eval_every_env_steps": 80,
        },
    }

    class Stop:
        def on_iteration_end(self, trainer: Trainer, event: Any) -> None:
            trainer.request_stop("half")

    first, second = Warmth(), Warmth()
    uniarena.train(config, run_dir=tmp_path / "whole", quiet=True)
    uniarena.train(config, run_dir=tmp_path / "half", quiet=True, callbacks=[first, Stop()])
    state, _ = checkpoint.load(tmp_path / "half" / "checkpoints" / "40")
    assert int(state["buffer"]["ring"]["cursor"]) == 40
    # the callbacks of the first part are given again, as the saved state asks for them
    Stop.on_iteration_end = lambda self, trainer, event: None  # type: ignore[method-assign]
    result = uniarena.resume(tmp_path / "half", quiet=True, callbacks=[second, Stop()])
    assert result.env_steps == 80
    assert first.seen[0][1] and not any(warm for steps, warm in first.seen if steps > 31)
    assert len(second.seen) == 40 and not any(warm for _, warm in second.seen)
    one, other = (
        checkpoint.load(tmp_path / name / "checkpoints" / "80", only=("agent", "buffer"))[0]
        for name in ("whole", "half")
    )
    weights = [key for key, leaf in one["agent"]["learner"].items() if isinstance(leaf, torch.Tensor)]
    assert len(weights) > 10
    assert all(torch.equal(one["agent"]["learner"][k], other["agent"]["learner"][k]) for k in weights)
    rows, others = ([part["rows"] for part in state["buffer"]["ring"]["segments"]] for state in (one, other))
    assert rows and all(torch.equal(mine, yours) for mine, yours in zip(rows, others, strict=True))
