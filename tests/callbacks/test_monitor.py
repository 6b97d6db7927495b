"""Health figures: there are many, they are right, and training does not know that somebody looks."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import uniarena
from tests.cases.test_spaces import ACTIONS, OBSERVATIONS, PLAIN
from tests.docs.pages import ROOT, codes, rows
from tests.fakes.envs import SpaceEnv
from uniarena.batch import Batch
from uniarena.trainer.callbacks.monitor import Monitor
from uniarena.trainer.health import FAMILIES, FIGURES, TOPICS, experience, networks
from uniarena.trainer.loggers.jsonl import read_rows

SMALL = {"hidden_sizes": [8]}
REPLAY = {"learning_starts": 20, "batch_size": 16}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", {"n_steps": 32, "n_epochs": 2, "batch_size": 32}),
    "a2c": ("Pendulum-v1", {"n_steps": 8}),
    "dqn": ("CartPole-v1", REPLAY),
    "rainbow": ("CartPole-v1", {**REPLAY}),
    "sac": ("Pendulum-v1", REPLAY),
    "td3": ("Pendulum-v1", REPLAY),
    "tqc": ("Pendulum-v1", REPLAY),
}


class Keep:
    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        self.seen.append(dict(trainer.metrics))


def train(name: str, monitor: bool, steps: int = 128) -> tuple[Any, list[dict[str, float]]]:
    env_id, fields = ARMS[name]
    env = uniarena.make_env(
        env_id, num_envs=2, seed=1, wrappers=["normalize_observation", "normalize_reward"]
    )
    parts = {"buffer": {"capacity": 500}} if "learning_starts" in fields else {}
    agent = uniarena.Agent.assemble(env, {"type": name, **fields}, SMALL, parts=parts, seed=3)
    keep = Keep()
    callbacks = [Monitor(every_env_steps=32), keep] if monitor else [keep]
    trainer = uniarena.Trainer(agent, env, callbacks=callbacks)
    trainer.fit(steps)
    trainer.close()
    return agent, keep.seen


@pytest.mark.parametrize("name", ARMS)
def test_a_run_that_is_watched_has_the_same_weights(name: str):
    watched, seen = train(name, True)
    alone, _ = train(name, False)
    state, other = watched.model.state_dict(), alone.model.state_dict()
    assert all(torch.equal(state[key], other[key]) for key in other)
    assert any("health/update_ratio" in row for row in seen)


@pytest.mark.parametrize(
    ("name", "least"), [("ppo", 19), ("a2c", 17), ("dqn", 18), ("sac", 16), ("td3", 16), ("tqc", 16)]
)
def test_every_learner_has_many_figures_and_all_are_explained(name: str, least: int):
    _, seen = train(name, True)
    found = {figure for row in seen for figure in row}
    health = {figure for figure in found if figure.startswith("health/")}
    assert len(health) >= least and health <= FIGURES.keys()
    assert all(any(figure.startswith(prefix) for figure in found) for prefix in FAMILIES)
    assert all(math.isfinite(row[figure]) for row in seen for figure in health & row.keys())


@pytest.mark.parametrize("learner", ["ppo", "dqn"])
@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_any_observation_is_looked_at(kind: str, learner: str, caplog: pytest.LogCaptureFixture):
    look(SpaceEnv(OBSERVATIONS[kind]), learner, caplog)


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array:UserWarning")
@pytest.mark.filterwarnings("ignore:.*Getting the length:UserWarning")
@pytest.mark.parametrize("kind", ACTIONS)
def test_any_action_is_looked_at(kind: str, caplog: pytest.LogCaptureFixture):
    look(SpaceEnv(PLAIN, ACTIONS[kind]), "ppo", caplog)


def look(spec: Any, learner: str, caplog: pytest.LogCaptureFixture) -> None:
    fields = {"n_steps": 8, "n_epochs": 1} if learner == "ppo" else {"learning_starts": 8, "batch_size": 8}
    parts = {"buffer": {"capacity": 100}} if learner == "dqn" else {}
    env = uniarena.make_env(lambda: copy.deepcopy(spec), num_envs=2)
    agent = uniarena.Agent.assemble(env, {"type": learner, **fields}, SMALL, parts=parts)
    keep = Keep()
    trainer = uniarena.Trainer(agent, env, callbacks=[Monitor(every_env_steps=16), keep])
    trainer.fit(48)
    trainer.close()
    assert "health/reward_mean" in keep.seen[-1]
    assert not [record.message for record in caplog.records if "figures" in record.message]


def test_a_look_that_fails_is_said_once_and_ends_nothing(caplog: pytest.LogCaptureFixture):
    monitor = Monitor(every_env_steps=16)
    monitor._look = lambda trainer: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    env = uniarena.make_env("CartPole-v1", num_envs=2)
    trainer = uniarena.Trainer(
        uniarena.Agent.assemble(env, {"type": "ppo", "n_steps": 8}), env, callbacks=[monitor]
    )
    trainer.fit(64)
    trainer.close()
    assert trainer.counters.env_steps == 64
    assert sum("health figures fail" in record.message for record in caplog.records) == 1


def test_ppo_reports_more_than_twenty_named_figures(tmp_path: Path):
    config = {"environment": "CartPole-v1", "learner": {"type": "ppo", "n_steps": 1024, "n_epochs": 1}}
    result = uniarena.train(
        {**config, "training": {"total_timesteps": 4096}}, run_dir=tmp_path / "run", quiet=True
    )
    last = read_rows(result.run / "metrics.jsonl")[-1]
    known = {name for charts in TOPICS.values() for names in charts.values() for name in names}
    assert len(known & last.keys()) > 30
    events = EventAccumulator(str(result.run / "events")).Reload()
    assert "custom_scalars__config__" in events.Tags()["tensors"]


def test_a_resumed_run_reports_the_same_figures(tmp_path: Path):
    config = {
        "environment": {"id": "CartPole-v1", "wrappers": ["normalize_observation"]},
        "agent": {"policy": SMALL},
        "learner": {"type": "ppo", "n_steps": 32, "n_epochs": 1, "batch_size": 32},
        "training": {"total_timesteps": 128, "n_eval_episodes": 1, "save_every_env_steps": 64},
        "callbacks": [{"type": "monitor", "every_env_steps": 48}],
    }
    whole = uniarena.train(config, run_dir=tmp_path / "whole", quiet=True)
    half = uniarena.train(config, ["training.total_timesteps=64"], run_dir=tmp_path / "half", quiet=True)
    uniarena.resume(half.run, ["training.total_timesteps=128"], quiet=True)
    ours, theirs = (
        [
            {k: v for k, v in row.items() if k.startswith(("health/", "gradient/", "update_ratio/"))}
            for row in read_rows(run / "metrics.jsonl")
        ]
        for run in (whole.run, half.run)
    )
    assert ours == theirs and sum(map(bool, ours)) == 2


# -- what the figures say ------------------------------------------------------------------------------------------
def test_the_table_of_the_docs_is_that_of_the_code():
    page = ROOT / "docs" / "health.md"
    table = {codes(cells[0])[0]: cells[1] for cells in rows(page, "Figures")}
    assert table == FIGURES


def test_observations_that_stand_still_and_actions_at_a_bound():
    valid = torch.tensor([[True], [True], [False]])
    obs = torch.tensor([[[1.0, 5.0]], [[2.0, 5.0]], [[9.0, 9.0]]])
    found = experience.of_observations({"a": obs, "action_mask": obs * 100}, valid, None)
    assert found == {"health/obs_min": 1.0, "health/obs_max": 5.0, "health/obs_still": 0.5}
    box = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
    action = torch.tensor([[[-3.0, 0.5]], [[1.999, 1.0]], [[0.0, 0.5]]])
    assert experience.of_actions(action, valid, box) == {"health/action_saturation": 0.75}
    assert experience.of_actions(torch.tensor([[1], [1], [0]]), valid, spaces.Discrete(2)) == {
        "health/action_top_share": 1.0
    }


def test_rewards_and_the_share_of_bonuses():
    batch = Batch(
        (4, 1),
        reward=torch.tensor([[0.0], [2.0], [0.0], [-2.0]]),
        bonus=torch.full((4, 1), 3.0),
        valid=torch.ones(4, 1, dtype=torch.bool),
    )
    found = experience.of_rewards(batch, {}, 0.0)
    assert found["health/reward_zero"] == 0.5 and found["health/reward_max"] == 2.0
    assert found["health/reward_std"] == pytest.approx(2**0.5)
    assert found["health/intrinsic_share"] == 0.75
    replayed = experience.of_rewards(batch.without("bonus"), {"intrinsic_mean": 2.0}, 0.5)
    assert replayed["health/intrinsic_share"] == 0.5


def test_dead_and_saturated_units_are_counted_and_no_hook_stays():
    model = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh())
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [1.0], [0.0], [0.0]]))
        model[0].bias.copy_(torch.tensor([0.0, 0.0, -1.0, 1.0]))
        model[2].weight.fill_(0.0)
        model[2].bias.copy_(torch.tensor([9.0, 0.0]))
    units = networks.Units()
    with units.watching(model):
        model(torch.rand(10, 1) + 0.1)
    assert units.figures() == {"health/dead_units": 0.25, "health/saturated_units": 0.5}
    assert not any(part._forward_hooks for part in model.modules())


def test_moves_are_relative_and_by_layer():
    layer = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 0.0, 4.0]]))
    moves = networks.Moves([("a.weight", layer.weight)])
    with torch.no_grad():
        layer.weight.mul_(2.0)
    assert moves.ratios() == {"update_ratio/a": 0.5, "health/update_ratio": 0.5}


class Odd(gymnasium.Env):
    """Rewards of 1, episodes of ten steps."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 10
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


def test_q_is_held_against_what_followed():
    env = uniarena.make_env(Odd, num_envs=1, seed=0)
    learner = {"type": "dqn", "gamma": 0.9, "learning_rate": 0.0, "learning_starts": 10}
    agent = uniarena.Agent.assemble(env, learner, SMALL)
    with torch.no_grad():
        for parameter in agent.model.parameters():
            parameter.zero_()
        agent.model.network.streams.advantage.layers[-1].bias.fill_(7.0)
    keep = Keep()
    trainer = uniarena.Trainer(agent, env, callbacks=[Monitor(every_env_steps=201), keep])
    trainer.fit(201)
    trainer.close()
    mean = sum((1 - 0.9**k) / 0.1 for k in range(1, 11)) / 10
    last = next(row for row in reversed(keep.seen) if "health/value_mean" in row)
    assert last["health/value_mean"] == pytest.approx(7.0)
    assert last["health/return_realised"] == pytest.approx(mean, abs=1e-6)
    assert last["health/obs_still"] == 1.0 and last["health/reward_std"] == 0.0


@pytest.mark.parametrize(
    ("n_steps", "memory"), [(32, {"type": "lstm"}), (300, {"type": "gru"})], ids=["whole", "cut to 256 rows"]
)
def test_a_policy_with_memory_is_asked_with_what_it_remembered(n_steps: int, memory: dict[str, Any]) -> None:
    """An update by nothing leaves the policy as it was, so it has not moved from the one that acted."""
    env = uniarena.make_env("CartPole-v1", num_envs=2, seed=1)
    learner = {"type": "ppo", "n_steps": n_steps, "n_epochs": 1, "learning_rate": 1e-30}
    agent = uniarena.Agent.assemble(env, learner, SMALL, parts={"memory": {**memory, "hidden_size": 8}})
    with torch.no_grad():
        for weight in agent.model.policy.parameters():
            weight *= 3.0  # what is remembered should matter
    keep = Keep()
    trainer = uniarena.Trainer(agent, env, callbacks=[Monitor(every_env_steps=1), keep])
    trainer.fit(4 * n_steps)
    trainer.close()
    for seen in keep.seen:
        assert seen["health/kl_update"] == pytest.approx(0.0, abs=1e-8)
        assert seen["health/ratio_max"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("learner", "looks"),
    [
        ({"type": "ppo", "n_steps": 500, "batch_size": 500, "n_epochs": 1}, [4000]),
        ({"type": "dqn"}, [2000, 4000]),
    ],
)
def test_steps_of_on_policy_runs_are_quick_and_looked_at_half_as_often(
    learner: dict[str, Any], looks: list[int], tmp_path: Path
):
    training = {
        "total_timesteps": 4000,
        "eval_every_env_steps": 4000,
        "n_eval_episodes": 1,
        "log_every_env_steps": 500,
    }
    config = {"environment": "CartPole-v1", "learner": learner, "training": training}
    result = uniarena.train(config, run_dir=tmp_path / "run", quiet=True)
    rows = read_rows(result.run / "metrics.jsonl")
    assert [row["env_steps"] for row in rows if "health/obs_max" in row] == looks
