"""Demonstrations beside replay: their share, their rows, and runs that resume exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.buffers.rollouts import generator
from tests.offline.test_regime import recording
from tests.resume.runs import differences
from tests.stages.test_kills import Interrupts
from uniarena import train
from uniarena.buffers.dataset import DatasetBuffer
from uniarena.buffers.demonstrations import DemonstrationsConfig, WithDemonstrations, with_demonstrations
from uniarena.buffers.prioritized import PrioritizedConfig, PrioritizedReplay
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig
from uniarena.buffers.sequence import SequenceConfig, SequenceReplay
from uniarena.buffers.spec import BufferSpec
from uniarena.buffers.trajectories import DatasetSequenceConfig, DatasetSequences
from uniarena.config import ConfigError, load
from uniarena.optim import ScheduleConfig
from uniarena.run import resume
from uniarena.run.making import makings

OBS, ACT = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Box(-2.0, 2.0, (1,), np.float32)
SPEC = BufferSpec(OBS, ACT, batch_size=8, action_space=ACT)


def shown(data: Path, **fields: Any) -> DemonstrationsConfig:
    return DemonstrationsConfig(path=str(data), **fields)


def test_the_share_follows_its_schedule_once_there_is_experience(data: Path) -> None:
    falls = ScheduleConfig(start=0.75, end=0.25)
    own = ReplayBuffer(ReplayConfig(capacity=50, demonstrations=shown(data, ratio=falls)), SPEC)
    buffer = with_demonstrations(own)
    assert isinstance(buffer, WithDemonstrations) and buffer.ready
    assert buffer.sample(generator()).source.tolist() == [1] * 8, "there is nothing else yet"
    filled(own, data)
    counts = []
    for progress in (0.0, 0.5, 1.0):
        buffer.set_progress(progress)
        counts.append(int((buffer.sample(generator()).source == 1).sum()))
    assert counts == [6, 4, 2]
    assert buffer.describe().startswith("75% to 25% of each batch are demonstrations: 240 transitions in 12")
    assert buffer.recent(4).shape == (4, 1) and not getattr(buffer, "fixed", False)


def filled(buffer: Any, data: Path, rows: int = 20) -> None:
    """Put an episode of the data into replay, as experience."""
    from uniarena.batch import Batch, Rollout
    from uniarena.data import load as load_data

    found = load_data(str(data))
    index = np.arange(rows)
    obs, after = (torch.from_numpy(part(index)) for part in (found.obs, found.next_obs))
    flags = torch.zeros(rows, 1, dtype=torch.bool)
    batch = Batch(
        (rows, 1),
        obs=obs[:, None],
        action=torch.from_numpy(found.action(index))[:, None],
        reward=torch.from_numpy(found.reward[index]).float()[:, None],
        terminated=flags,
        truncated=flags,
        valid=~flags,
        is_first=torch.arange(rows)[:, None] == 0,
    )
    empty = Batch((0,), t=torch.zeros(0).long(), b=torch.zeros(0).long(), obs=obs[:0])
    last = Batch((1,), obs=after[-1:], is_first=torch.zeros(1, dtype=torch.bool))
    buffer.add(Rollout(batch, Batch((1,), {}), last, empty))


@pytest.mark.parametrize("n_step", [1, 3])
def test_rows_of_both_are_alike(n_step: int, data: Path) -> None:
    """The same episode as experience and as data: the same n-step sums, successors and discounts."""
    cfg = PrioritizedConfig(capacity=50, demonstrations=shown(data, ratio=0.5, episodes=(0, 1)))
    own = PrioritizedReplay(cfg, replace(SPEC, n_step=n_step))
    filled(own, data)
    batch = with_demonstrations(own).sample(generator(), 400)
    rows: tuple[dict[Any, Any], ...] = ({}, {})
    for k in range(400):
        key = tuple(batch.obs[k].tolist())
        fields = [
            batch[name][k].flatten().tolist() for name in ("action", "reward", "next_obs", "discount", "n")
        ]
        rows[int(batch.source[k])][key] = fields
    assert len(rows[0]) >= 17 and rows[0].keys() <= rows[1].keys()
    steps = sorted(rows[0].keys() & rows[1].keys())
    assert all(np.allclose(np.concatenate(rows[0][k]), np.concatenate(rows[1][k]), atol=1e-6) for k in steps)


def test_sequences_begin_with_rows_that_warm_a_memory_up(data: Path) -> None:
    batch = DatasetSequences(DatasetSequenceConfig(path=str(data), length=3, burn_in=2), SPEC).sample(
        generator(), 60
    )
    assert batch.shape == (5, 60)
    for column in range(60):
        anchor = int(batch.index[2, column])
        first, last = anchor // 20 * 20, anchor // 20 * 20 + 19
        wanted = [anchor + k for k in range(-2, 3)]
        assert batch.index[:, column].tolist() == [min(max(k, first), last) for k in wanted]
        valid = [first <= k <= last for k in wanted]
        assert batch.valid[:, column].tolist() == valid
        assert batch.weight[:, column].tolist() == [0.0, 0.0, *map(float, valid[2:])]


def test_sequences_of_data_join_those_of_replay_with_a_state_of_zeros(data: Path) -> None:
    state = spaces.Tuple([spaces.Box(-np.inf, np.inf, (4,), np.float32)])
    cfg = SequenceConfig(capacity=50, length=3, burn_in=2, demonstrations=shown(data))
    buffer = with_demonstrations(SequenceReplay(cfg, replace(SPEC, extra={"state": state}, n_step=3)))
    batch = buffer.sample(generator())
    assert buffer.gives_sequences and batch.shape == (5, 8) and batch.source.shape == (5, 8)
    assert batch.state[0].shape == (5, 8, 4) and float(batch.state[0].abs().max()) == 0.0
    assert {"truncated", "is_first", "valid", "weight", "discount"} <= set(batch)


def config(data: Path, learner: dict[str, Any], **buffer: Any) -> dict[str, Any]:
    return {
        "experiment": {"seed": 3, "loggers": [{"type": "jsonl"}]},
        "environment": {"id": "Pendulum-v1", "max_episode_steps": 20, "num_envs": 2},
        "agent": {
            "policy": {"hidden_sizes": [16]},
            "buffer": {"capacity": 100, "demonstrations": {"path": str(data), "ratio": 0.5}, **buffer},
        },
        "learner": {"batch_size": 16, "learning_starts": 10, "updates_per_env_step": 0.5, **learner},
        "training": {
            "total_timesteps": 60, "save_every_env_steps": 20, "eval_every_env_steps": 60,
            "log_every_env_steps": 20, "n_eval_episodes": 1, "device": "cpu", "threads": 1,
        },
    }  # fmt: skip


RUNS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "sac", "n_step": 3}, {"type": "prioritized"}),
    ({"type": "rebrac", "batch_size": 16}, {}),
]


@pytest.mark.parametrize(("learner", "buffer"), RUNS, ids=["prioritized n-step", "next actions"])
def test_a_run_with_demonstrations_is_the_same_when_interrupted(
    learner: dict[str, Any], buffer: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    settings = config(data, learner, **buffer)
    train(settings, run_dir=whole, quiet=True, callbacks=[Interrupts()])
    train(settings, run_dir=cut, quiet=True, callbacks=[Interrupts("env_steps", 20)])
    resume(cut, quiet=True, callbacks=[Interrupts()])
    assert differences(whole, cut) == []
    resume(whole, ["agent.buffer.demonstrations.ratio=0.1", "training.total_timesteps=80"], quiet=True,
           callbacks=[Interrupts()])  # fmt: skip
    assert "demonstrations.ratio 0.5 → 0.1" in (whole / "run.log").read_text(encoding="utf-8")
    (tmp_path / "other").mkdir()
    other = recording(tmp_path / "other" / "random.npz")
    with pytest.raises(ConfigError, match="laid out by it"):
        resume(cut, [f"agent.buffer.demonstrations.path={other}", "training.total_timesteps=80"], quiet=True)


def test_a_network_with_memory_learns_from_demonstrations_too(tmp_path: Path) -> None:
    shows = recording_of_cartpole(tmp_path / "cartpole.npz")
    settings = config(shows, {"type": "dqn", "n_step": 2}, length=4, burn_in=2)
    settings["environment"]["id"] = "CartPole-v1"
    settings["agent"]["memory"] = {"type": "lstm", "hidden_size": 8}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(settings, run_dir=whole, quiet=True, callbacks=[Interrupts()])
    train(settings, run_dir=cut, quiet=True, callbacks=[Interrupts("env_steps", 20)])
    resume(cut, quiet=True, callbacks=[Interrupts()])
    assert differences(whole, cut) == []


def recording_of_cartpole(path: Path) -> Path:
    import gymnasium as gym

    from uniarena.data import Episode, Recorder

    env = gym.make("CartPole-v1", max_episode_steps=20)
    recorder = Recorder(env.observation_space, env.action_space, {"id": "CartPole-v1"}, {"made_by": "a test"})
    for seed in range(4):
        obs, rewards, over, terminated = [env.reset(seed=seed)[0]], [], False, False
        while not over:
            after, reward, terminated, truncated, _ = env.step(len(rewards) % 2)
            obs.append(after)
            rewards.append(float(reward))
            over = terminated or truncated
        ends = np.zeros((2, len(rewards)), bool)
        ends[:, -1] = terminated, not terminated
        recorder.add(
            Episode(np.stack(obs), np.arange(len(rewards)) % 2, np.array(rewards), ends[0], ends[1], True)
        )
    env.close()
    return recorder.save(path)


def test_what_is_wrong_with_them_is_told(data: Path, tmp_path: Path) -> None:
    settings = config(data, {"type": "sac"}, demonstrations={"ratio": 1.5})
    with pytest.raises(ConfigError) as caught:
        train(settings, run_dir=tmp_path / "run", quiet=True)
    paths = {"agent.buffer.demonstrations.ratio", "agent.buffer.demonstrations.path"}
    assert {fault.path for fault in caught.value.faults} == paths
    settings = config(data, {"type": "sac"})
    settings["environment"]["id"] = "MountainCarContinuous-v0"
    with pytest.raises(ConfigError, match=r"has\s+rows\s+of\s+shape"):
        train(settings, run_dir=tmp_path / "run", quiet=True)


def test_they_are_made_where_they_are_not_there(tmp_path: Path) -> None:
    made = {"path": "x/mixed.npz", "made_from": {"recipe": "sac/pendulum"}}
    settings = config(tmp_path, {"type": "sac"}, demonstrations=made)
    (making,) = makings(load(settings))
    assert (making.path, making.cfg.recipe) == (Path("x/mixed.npz"), "sac/pendulum")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"path": "none.npz"}, "there is no such file"),
        ({"min_return": 1e9}, "no episode of 12 is left"),
        ({"top_fraction": 0.5, "other": True}, r"other\.npz"),
    ],
)
def test_what_is_wrong_with_the_data_names_its_key_and_line(
    data: Path, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    fields = {"path": str(data), **change}
    if fields.pop("other", False):  # of another environment
        fields["path"] = str(tmp_path / "other.npz")
        np.savez(
            fields["path"],
            observations=np.zeros((6, 2)),
            actions=np.zeros((6, 1)),
            rewards=np.ones(6),
            terminals=np.arange(6) == 5,
        )
    file = tmp_path / "a.yaml"
    file.write_text(
        "environment: {id: Pendulum-v1}\nlearner: {type: sac}\nagent:\n  buffer:\n    capacity: 100\n"
        f"    demonstrations: {json.dumps(fields)}\n"
    )
    with pytest.raises(ConfigError, match=said.replace(" ", r"\s+")) as caught:
        train(str(file), run_dir=tmp_path / "run", quiet=True)
    assert caught.value.path == "agent.buffer.demonstrations.path"
    assert "a.yaml:6: agent.buffer.demonstrations.path" in str(caught.value)


def test_a_path_alone_will_do(data: Path) -> None:
    tree = {"environment": {"id": "Pendulum-v1"}, "learner": "sac"}
    exp = load([{**tree, "agent": {"buffer": {"demonstrations": "other.npz"}}}], [])
    assert exp.agent.buffer is not None and exp.agent.buffer["demonstrations"] == {"path": "other.npz"}
    exp = load([tree], ["agent.buffer.demonstrations=demos.npz", "agent.buffer.demonstrations.ratio=0.25"])
    assert exp.agent.buffer is not None
    assert exp.agent.buffer["demonstrations"] == {"path": "demos.npz", "ratio": 0.25}


def test_other_data_at_a_resume_names_the_key(data: Path, tmp_path: Path) -> None:
    own = WithDemonstrations(*_parts(data), ratio=0.5)
    state = own.state_dict()
    own.load_state_dict(state)
    state["buffers"][1]["fingerprint"] = {**state["buffers"][1]["fingerprint"], "sha256": "0"}
    with pytest.raises(ConfigError, match=r"the\s+files\s+differ") as caught:
        own.load_state_dict(state)
    assert caught.value.path == "agent.buffer.demonstrations.path"


def _parts(data: Path) -> tuple[ReplayBuffer, DatasetBuffer]:
    return ReplayBuffer(ReplayConfig(capacity=50), SPEC), DatasetBuffer(shown(data), SPEC)
