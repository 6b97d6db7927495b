"""The third regime through the same loop: the clock is updates, the buffer is data, and nobody steps an environment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.resume.runs import KILLED, command, differ, differences, ended, run_command, start
from uniarena import Agent, Trainer, assembly, checkpoint, make_env, train
from uniarena.config import ConfigError, dump, load
from uniarena.data import Episode, Recorder
from uniarena.data import load as load_data
from uniarena.run import profile, resume, verify
from uniarena.sampling import EmptySampler
from uniarena.seeding import Streams
from uniarena.trainer.schedule import Counters, OfflineSchedule

RECORDED = "tests.offline.recorded:Recorded"
SMALL = {"policy": {"hidden_sizes": [16]}}
MEMORY = {"type": "gtrxl", "window": 4, "hidden_size": 8, "num_layers": 1, "num_heads": 1}
CONTINUOUS = ("bc", "td3_bc", "rebrac", "iql", "awac", "cql", "bcq", "decision_transformer")
DISCRETE = ("bc", "iql", "awac", "cql", "discrete_cql", "discrete_bcq", "decision_transformer")
RUNS = [(name, "Pendulum-v1") for name in CONTINUOUS] + [(name, "CartPole-v1") for name in DISCRETE]


def config(name: str, env: str, **training: Any) -> dict[str, Any]:
    agent: dict[str, Any] = dict(SMALL)
    data: dict[str, Any] = {"type": RECORDED, "env": env}
    rate = {"type": "linear", "start": 3e-3}
    learner: dict[str, Any] = {"type": name, "batch_size": 16, "learning_rate": rate}
    if name == "decision_transformer":
        agent, data = {**agent, "memory": MEMORY}, {**data, "length": 4}
    if name == "bcq":
        learner["model_hidden_sizes"] = [16]
    return {
        "experiment": {"seed": 3, "loggers": [{"type": "jsonl"}]},
        "environment": {"id": env, "max_episode_steps": 20},
        "learner": learner,
        "agent": agent,
        "data": data,
        "training": {
            "total_updates": 40,
            "save_interval": 20,
            "eval_interval": 20,
            "log_interval": 10,
            "n_eval_episodes": 1,
            "device": "cpu",
            "threads": 1,
            **training,
        },
    }


def test_the_schedule_counts_updates() -> None:
    schedule, counters = OfflineSchedule(iteration=30), Counters(unit="updates", updates=7)
    assert schedule.env_steps(counters, 4, 100) == 0
    assert schedule.updates_due(counters, None, 100) == 23, "to the next multiple, as an uninterrupted run"
    assert schedule.updates_due(Counters(updates=90), None, 100) == 10
    assert schedule.iteration_end(counters, 100) == counters.clock == 7
    assert (counters.units, Counters(env_steps=5, updates=2).clock) == ("updates", 5)


def test_a_sampler_that_collects_nothing() -> None:
    env = make_env("CartPole-v1", 3)
    sampler = EmptySampler(env, Streams(0))
    rollout = sampler.collect(0)
    assert (rollout.T, rollout.B, sampler.columns) == (0, 3, 3)
    assert rollout.rows.obs.shape == (0, 3, 4) and rollout.rows.action.shape == (0, 3)
    assert rollout.rows.action.dtype is torch.int64 and rollout.last.obs.shape == (3, 4)
    with pytest.raises(ValueError, match="steps no environment"):
        sampler.collect(8)
    sampler.load_state_dict(sampler.state_dict())
    sampler.close()


class Steps:
    """Fails where an environment would be stepped for learning."""

    def on_env_step(self, trainer: Any, event: Any) -> None:
        raise AssertionError("an environment was stepped")

    def on_batch_collected(self, trainer: Any, event: Any) -> None:
        raise AssertionError("something was collected")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_from_yaml_to_its_result(tmp_path: Path) -> None:
    result = train(config("iql", "Pendulum-v1"), run_dir=tmp_path / "run", quiet=True, callbacks=[Steps()])
    assert (result.env_steps, result.updates, result.length) == (0, 40, "40 updates")
    assert result.eval is not None and result.eval.length_mean == 20
    rows = rows_of(tmp_path / "run")
    assert [(row["env_steps"], row["updates"]) for row in rows] == [(0, 10), (0, 20), (0, 30), (0, 40)]
    assert "eval/return_mean" in rows[1] and "advantage" in rows[0]
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["20", "40", "best"]
    agent, env = Agent.load(tmp_path / "run", trust=True), make_env("Pendulum-v1", 1)
    assert agent.act(env.observation_space.sample()).shape == (1,)
    env.close()


class StopsAt:
    """Interrupts a run, as a signal would."""

    def __init__(self, updates: int) -> None:
        self.updates = updates

    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        if trainer.counters.updates >= self.updates:
            trainer.request_stop("interrupted")


@pytest.mark.parametrize(("name", "env"), RUNS)
def test_interrupted_and_resumed_is_the_same_run(name: str, env: str, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(config(name, env), run_dir=whole, quiet=True)
    train(config(name, env), run_dir=cut, quiet=True, callbacks=[StopsAt(20)])
    resume(cut, quiet=True)
    states = [checkpoint.load(folder / "checkpoints" / "40")[0] for folder in (whole, cut)]
    assert [line for line in differ(*states, "state") if "seconds" not in line] == []
    rows = [[{k: v for k, v in row.items() if k in ("updates", "loss", "value_loss")} for row in rows_of(folder)]
            for folder in (whole, cut)]  # fmt: skip
    assert rows[0] == rows[1]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "env"), [("cql", "Pendulum-v1"), ("discrete_bcq", "CartPole-v1")])
def test_killed_and_continued_in_a_new_process(
    name: str, env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, whole, cut = tmp_path / "run.json", tmp_path / "whole", tmp_path / "cut"
    listeners = [{"type": "tests.offline.recorded:Kills"}]
    file.write_text(json.dumps({**config(name, env), "callbacks": listeners}), encoding="utf-8")
    assert command("train", str(file), "--run-dir", str(whole), "--quiet") == 0
    assert (
        ended(start(killed_after, 27, ("train", str(file), "--run-dir", str(cut), "--quiet")), "it") == KILLED
    )
    assert not (cut / "checkpoints" / "40").exists()
    assert command("resume", str(cut), "--quiet") == 0
    assert differences(whole, cut) == []


def killed_after(updates: int, arguments: tuple[str, ...]) -> None:
    os.environ["KILL_AFTER"] = str(updates)
    run_command(arguments)


def recording(path: Path) -> Path:
    """Twelve episodes of random torques in Pendulum-v1, as a file."""
    env = gym.make("Pendulum-v1", max_episode_steps=20)
    env.action_space.seed(0)
    recorder = Recorder(env.observation_space, env.action_space, {"id": "Pendulum-v1"}, {"made_by": "a test"})
    for seed in range(12):
        obs, actions, rewards, over = [env.reset(seed=seed)[0]], [], [], False
        while not over:
            actions.append(env.action_space.sample())
            after, reward, _, over, _ = env.step(actions[-1])
            obs.append(after)
            rewards.append(float(reward))
        ends = np.zeros((2, len(rewards)), bool)
        ends[1, -1] = True
        recorder.add(Episode(np.stack(obs), np.stack(actions), np.array(rewards), ends[0], ends[1], True))
    env.close()
    return recorder.save(path)


@pytest.mark.parametrize("name", ["bc", "rebrac", "decision_transformer"])
def test_a_file_of_data_in_one_line(name: str, tmp_path: Path) -> None:
    settings = config(name, "Pendulum-v1")
    settings["data"] = str(recording(tmp_path / "random.npz"))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(settings, run_dir=whole, quiet=True)
    train(settings, run_dir=cut, quiet=True, callbacks=[StopsAt(20)])
    resume(cut, quiet=True)
    states = [checkpoint.load(folder / "checkpoints" / "40")[0] for folder in (whole, cut)]
    assert [line for line in differ(*states, "state") if "seconds" not in line] == []
    assert states[0]["buffer"]["fingerprint"]["transitions"] == 12 * 20
    row = rows_of(whole)[-1]
    expected = {
        "bc": "validation_loss",
        "rebrac": "behaviour_distance",
        "decision_transformer": "target_return",
    }
    assert expected[name] in row


def test_the_bias_of_values_on_the_data_is_a_health_figure(tmp_path: Path) -> None:
    settings = config("iql", "Pendulum-v1")
    settings["callbacks"] = [{"type": "monitor", "every_env_steps": 20}]
    train(settings, run_dir=tmp_path / "run", quiet=True)
    row = rows_of(tmp_path / "run")[1]
    assert "health/value_bias" in row and "health/action_saturation" in row


def test_observations_are_normalised_by_the_data(tmp_path: Path) -> None:
    settings = config("bc", "Pendulum-v1")
    path = recording(tmp_path / "random.npz")
    settings["data"] = {"path": str(path)}
    settings["environment"]["wrappers"] = [{"type": "normalize_observation"}]
    train(settings, run_dir=tmp_path / "run", quiet=True)
    agent = Agent.load(tmp_path / "run")
    obs = load_data(str(path)).obs(np.arange(240))
    assert agent.normalizer is not None and int(agent.normalizer.moments.count) == 240
    np.testing.assert_allclose(agent.normalizer.centre.numpy(), obs.mean(0), atol=1e-5)
    settings["environment"]["wrappers"] = [{"type": "normalize_reward"}]
    with pytest.raises(ConfigError, match="returns of experience"):
        train(settings, run_dir=tmp_path / "other", quiet=True)


def test_from_python_without_files() -> None:
    env = make_env("Pendulum-v1", 1)
    learner, parts = {"type": "td3_bc", "batch_size": 8}, {"buffer": {"type": RECORDED}}
    agent = Agent.assemble(env, learner, policy={"hidden_sizes": [8]}, parts=parts)
    trainer = Trainer(agent, env)
    assert trainer.fit(25).updates == 25 and trainer.rollout is None
    assert trainer.fit(30).updates == 30
    trainer.close()


@pytest.mark.parametrize(
    ("change", "path", "says"),
    [
        ({"training": {"total_timesteps": 100}}, "training.total_timesteps", "clock is updates"),
        ({"training": {"save_every_env_steps": 100}}, "training.save_every_env_steps", "save_interval"),
        ({"agent": {"buffer": {"type": "replay"}}}, "agent.buffer", "section data"),
        ({"data": None}, "training.total_updates", "total_timesteps"),
    ],
)
def test_the_other_unit_is_refused(change: dict[str, Any], path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load([config("iql", "Pendulum-v1"), change])
    assert path in str(caught.value)


def test_a_learner_from_data_needs_data(tmp_path: Path) -> None:
    plain = {"environment": {"id": "CartPole-v1"}, "learner": {"type": "bc"}}
    with pytest.raises(ConfigError, match="learns from data, and none is given"):
        train(plain, run_dir=tmp_path / "run", quiet=True)


@pytest.mark.parametrize("name", ["ppo", "a2c", "trpo", "impala", "appo"])
def test_a_learner_from_its_own_steps_says_what_to_do_with_data(name: str, tmp_path: Path) -> None:
    exp = load([{"environment": "CartPole-v1", "learner": name, "data": "some.npz"}])
    with pytest.raises(ConfigError, match=f"{name} learns from the steps of its own policy") as told:
        assembly.check(exp)
    said = " ".join(str(told.value).split())
    assert "stages: [{name: clone, learner: bc" in said and "behavior_cloning" in said
    data = str(tmp_path / "some.npz")
    term = {"type": "behavior_cloning", "data": data, "weight": 0.1}  # what it advises can be written
    assembly.check(load([{"environment": "CartPole-v1", "learner": {"type": name, "regularizers": [term]}}]))
    stages = [{"name": "clone", "learner": "bc", "data": data}, {"name": "finetune", "learner": name}]
    assert len(load([{"environment": "CartPole-v1", "stages": stages}]).stages) == 2


def test_a_config_is_written_as_it_is_read() -> None:
    first = load(config("iql", "Pendulum-v1"))
    text = dump(first)
    assert "total_timesteps" not in text and "total_updates: 40" in text
    assert first.data is not None and first.data["type"] == RECORDED
    assert (first.total, first.units) == (40, "updates")
    short = load([config("bc", "CartPole-v1"), {"data": None}, {"data": "some.hdf5"}])
    assert short.data is not None and short.data["path"] == "some.hdf5"


def test_a_profile_counts_updates_and_ends(tmp_path: Path) -> None:
    exp = load([config("iql", "Pendulum-v1", log_interval=1_000, save_interval=1_000, eval_interval=1_000)])
    done = profile(exp, tmp_path, steps=20, seconds=0.001)
    assert done.found.unit == "updates" and 20 <= done.found.steps <= 40
    document = json.loads(done.file.read_text(encoding="utf-8"))
    assert document["updates"] == done.found.steps and "env_steps" not in document
    assert document["floors_steps_per_s"].keys() == {"updates"}


def test_what_is_said_counts_updates_and_agrees_with_its_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exp = config("iql", "Pendulum-v1", total_updates=1, save_interval=2000, eval_interval=500, log_interval=1)
    train(exp, run_dir=tmp_path / "run")
    said = [record.getMessage() for record in caplog.records]
    [late] = [each for each in said if "longer than the run" in each]
    assert late.endswith(
        "longer than the run of 1 update, so that its end alone counts: training.save_interval=2,000, "
        "eval_interval=500"
    )
    assert any(each.startswith("evaluation at 1 update, deterministic, 1 episode: ") for each in said)
    verdict = verify(tmp_path / "run", trust=True)
    assert str(verdict).startswith("reproduces: 1 update, 1 row of figures, ") and verdict.units == "updates"
    assert verify(tmp_path / "run", 50, trust=True).limit == "1 update is all that the run recorded"


def test_a_policy_with_memory_is_not_evaluated_on_data(tmp_path: Path) -> None:
    from tests.offline.test_q_on_data import narrow

    exp = config("decision_transformer", "Pendulum-v1") | {"callbacks": ["evaluate_on_data"]}
    exp["data"] = {"path": str(narrow(tmp_path / "narrow.npz", 2, 10))}
    with pytest.raises(ConfigError, match="this one has memory") as error:
        train(exp, run_dir=tmp_path / "run", quiet=True)
    assert "remove it" in str(error.value) and not (tmp_path / "run" / "checkpoints").exists()
