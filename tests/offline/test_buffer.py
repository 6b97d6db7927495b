"""The dataset as a buffer, against a list of episodes; and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import uniarena
from tests.buffers.rollouts import generator, line
from tests.offline.episodes import ACTIONS, OBSERVATIONS, keyed, random_episodes, record
from uniarena import registry
from uniarena.batch import tree_leaves, tree_map
from uniarena.buffers.dataset import DatasetBuffer, DatasetConfig
from uniarena.buffers.mix import MixedReplay
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig
from uniarena.buffers.spec import BufferSpec
from uniarena.buffers.trajectories import DatasetSequenceConfig, DatasetSequences
from uniarena.config import ConfigError, parse
from uniarena.data import DataError, Episode
from uniarena.data.fitting import policy_space

GAMMA = 0.9


def made(tmp_path: Path, seed: int, n: int = 1, **more: Any) -> tuple[DatasetBuffer, list[Episode]]:
    rng = np.random.default_rng(seed)
    observed = list(OBSERVATIONS.values())[seed % len(OBSERVATIONS)]
    acted = list(ACTIONS.values())[seed % len(ACTIONS)]
    episodes = random_episodes(rng, observed, acted, 6)
    path = record(tmp_path / f"{seed}.npz", episodes, observed, acted)
    spec = BufferSpec(
        observed, policy_space(acted), gamma=GAMMA, batch_size=64, n_step=n, successors=True, **more
    )
    return DatasetBuffer(DatasetConfig(path=str(path)), spec), episodes


def at(tree: Any, k: int) -> list[list[Any]]:
    return [np.asarray(leaf[k]).tolist() for leaf in tree_leaves(tree)]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_sample_is_what_the_episodes_say(tmp_path: Path, seed: int, n: int) -> None:
    buffer, episodes = made(tmp_path, seed, n)
    places = [(episode, k) for episode in episodes for k in range(len(episode.reward))]
    assert buffer.size == len(places) and buffer.ready
    batch = buffer.sample(generator(seed), 200)
    assert batch.reward.dtype == torch.float32 and batch.discount.dtype == torch.float32
    for i, index in enumerate(batch.index.tolist()):
        episode, k = places[index]
        taken = min(n, len(episode.reward) - k)
        total = sum(GAMMA**j * episode.reward[k + j] for j in range(taken))
        over = bool(episode.terminated[k + taken - 1])
        assert at(batch.obs, i) == at(episode.obs, k)
        assert at(batch.action, i) == at(episode.action, k)
        assert at(batch.next_obs, i) == at(episode.obs, k + taken)
        assert batch.reward[i].item() == pytest.approx(total, abs=1e-5)
        assert batch.discount[i].item() == pytest.approx(0.0 if over else GAMMA**taken, abs=1e-6)
        assert (batch.terminated[i].item(), batch.n[i].item(), batch.weight[i].item()) == (over, taken, 1.0)
        if n > 1:
            assert batch.window["valid"][i].tolist() == [j < taken for j in range(n)]
            for j in range(taken):
                own = tree_map(lambda leaf, i=i: leaf[i], batch.window["next_obs"])
                assert at(own, j) == at(episode.obs, k + j + 1)
        else:
            assert batch.known.all()
    assert set(batch.index.tolist()) <= set(range(len(places)))


def test_draws_are_uniform_and_repeat(tmp_path: Path) -> None:
    buffer, _ = made(tmp_path, 0)
    counts = torch.bincount(buffer.sample(generator(0), 20_000).index, minlength=buffer.size)
    expected = 20_000 / buffer.size
    assert ((counts - expected) ** 2 / expected).sum() < 2 * buffer.size
    assert torch.equal(buffer.sample(generator(3)).index, buffer.sample(generator(3)).index)


def test_what_terminated_without_its_last_observation_is_worth_nothing_afterwards(tmp_path: Path) -> None:
    obs = np.arange(6, dtype=np.float32)[:, None]
    path = keyed(
        tmp_path / "a.npz",
        observations=obs,
        actions=np.zeros((6, 1), np.float32),
        rewards=np.ones(6),
        terminals=np.array([0, 0, 1, 0, 0, 1]),
        timeouts=np.zeros(6),
    )
    box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    spec = BufferSpec(box, box, gamma=GAMMA, successors=True, action_space=box)
    batch = DatasetBuffer(DatasetConfig(path=str(path)), spec).at(np.arange(6))
    assert batch.known.tolist() == [True, True, False] * 2
    assert batch.discount.tolist() == pytest.approx([0.9, 0.9, 0.0] * 2)
    assert batch.next_obs.ravel().tolist() == [1, 2, 2, 4, 5, 5]  # a number where none is known, times 0


def test_actions_come_as_the_policy_gives_them(tmp_path: Path) -> None:
    path = keyed(
        tmp_path / "a.npz",
        observations=np.zeros((4, 1), np.float32),
        actions=np.array([[-2.0, 0.0], [2.0, 4.0], [1.0, 1.0], [3.0, -1.0]], np.float32),
        rewards=np.zeros(4),
        terminals=np.arange(4) == 3,
        timeouts=np.zeros(4),
    )
    box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    low, high = np.array([-2.0, 0.0], np.float32), np.array([2.0, 4.0], np.float32)
    acted = spaces.Box(low, high, dtype=np.float32)
    stretched = BufferSpec(box, spaces.Box(-1.0, 1.0, (2,), np.float32), action_space=acted)
    batch = DatasetBuffer(DatasetConfig(path=str(path)), stretched).at(np.arange(4))
    assert batch.action.tolist() == [
        [-1.0, -1.0],
        [1.0, 1.0],
        [0.5, -0.5],
        [1.0, -1.0],
    ]  # the last one clipped
    plain = BufferSpec(box, acted, action_space=acted)
    batch = DatasetBuffer(DatasetConfig(path=str(path)), plain).at(np.arange(4))
    assert batch.action.tolist() == [[-2.0, 0.0], [2.0, 4.0], [1.0, 1.0], [2.0, 0.0]]


def test_a_resume_with_other_data_is_refused(tmp_path: Path) -> None:
    buffer, _ = made(tmp_path, 0)
    state = buffer.state_dict()
    made(tmp_path, 0)[0].load_state_dict(state)
    with pytest.raises(DataError, match="not the data that the run learned from: the files differ"):
        made(tmp_path, 6)[0].load_state_dict(state)
    part = DatasetBuffer(DatasetConfig(path=str(tmp_path / "0.npz"), episodes=(0, 2)), buffer.spec)
    with pytest.raises(DataError, match="other transitions are chosen"):
        part.load_state_dict(state)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    buffer, _ = made(tmp_path, 0)
    with pytest.raises(ValueError, match="takes no experience"):
        buffer.add(line([0.0, 1.0], 2.0))
    with pytest.raises(ConfigError, match="a dataset has no state"):
        DatasetBuffer(
            buffer.cfg,
            BufferSpec(
                buffer.spec.observation_space, buffer.spec.policy_space, extra={"state": spaces.Discrete(2)}
            ),
        )
    other = BufferSpec(spaces.Box(-1, 1, (7,), np.float32), buffer.spec.policy_space)
    with pytest.raises(DataError, match="the environment has"):
        DatasetBuffer(buffer.cfg, other)
    wrong = BufferSpec(buffer.spec.observation_space, spaces.Discrete(2))
    with pytest.raises(DataError, match=r"its actions are Box\(2\) float32, and the run's are Discrete\(2\)"):
        DatasetBuffer(buffer.cfg, wrong)


def test_it_is_found_by_its_type_and_mixes_with_replay(tmp_path: Path) -> None:
    buffer, _ = made(tmp_path, 0)
    assert registry.lookup("buffer", "dataset") is DatasetBuffer
    cfg = parse(
        DatasetBuffer.Config, {"path": str(tmp_path / "0.npz"), "top_fraction": "0.5"}, "agent.buffer"
    )
    assert DatasetBuffer(cfg, buffer.spec).size < buffer.size
    mixed = MixedReplay([ReplayBuffer(ReplayConfig(capacity=10), buffer.spec), buffer], [1.0, 1.0])
    batch = mixed.sample(generator(0), 10)
    assert batch.source.tolist() == [1] * 10  # replay is empty so far


def test_an_agent_learns_from_it_and_so_does_a_trainer(tmp_path: Path) -> None:
    env = uniarena.make_env("CartPole-v1")
    rng = np.random.default_rng(0)
    n = 200
    path = keyed(
        tmp_path / "a.npz",
        observations=rng.normal(size=(n, 4)),
        next_observations=rng.normal(size=(n, 4)),
        actions=rng.integers(0, 2, n),
        rewards=np.ones(n),
        terminals=np.ones(n),
        timeouts=np.zeros(n),
    )
    parts = {"buffer": {"type": "dataset", "path": str(path)}}
    learner = {"type": "dqn", "batch_size": 32, "learning_rate": 0.01, "learning_starts": 0}
    agent = uniarena.Agent.assemble(env, learner, policy={"hidden_sizes": [8]}, parts=parts)
    losses = [float(agent.update().metrics["loss"]) for _ in range(150)]
    assert losses[-1] < 0.1 * losses[0]  # every step is worth 1, and it learns that
    assert uniarena.Trainer(agent, env).fit(10).updates == 10
    env.close()


@pytest.mark.parametrize("n", [1, 3])
def test_what_a_learner_asks_to_know_of_the_rows_after(tmp_path: Path, n: int) -> None:
    buffer, episodes = made(tmp_path, 0, n, asked=("next_action", "return_to_go"))
    places = [(k, episode, t) for k, episode in enumerate(episodes) for t in range(len(episode.reward))]
    batch = buffer.at(np.arange(len(places)))
    assert batch.episode_id.tolist() == [k for k, _, _ in places]
    for i, (_, episode, t) in enumerate(places):
        rest = sum(GAMMA**j * r for j, r in enumerate(episode.reward[t:]))
        assert batch.return_to_go[i].item() == pytest.approx(rest, abs=1e-4)
        after = t + min(n, len(episode.reward) - t)
        assert batch.followed[i].item() == (after < len(episode.reward))
        if batch.followed[i]:
            assert at(batch.next_action, i) == at(episode.action, after)


def test_rows_to_look_at_are_spread_over_the_data(tmp_path: Path) -> None:
    buffer, episodes = made(tmp_path, 0)
    rows = buffer.recent(512)
    assert rows.shape == (buffer.size, 1) and bool(rows.valid.all())
    lengths = [len(episode.reward) for episode in episodes]
    assert rows.ended[:, 0].nonzero().ravel().tolist() == (np.cumsum(lengths) - 1).tolist()


def test_sequences_end_with_their_episode(tmp_path: Path) -> None:
    buffer, episodes = made(tmp_path, 0, asked=("return_to_go",))
    cfg = DatasetSequenceConfig(path=buffer.cfg.path, length=4)
    batch = DatasetSequences(cfg, buffer.spec).sample(generator(0), 100)
    assert batch.shape == (4, 100) and bool(batch.valid[0].all())
    starts = np.cumsum([0, *(len(episode.reward) for episode in episodes)])
    for column in range(100):
        first = int(batch.index[0, column])
        left = int(starts[np.searchsorted(starts, first, side="right")]) - first
        expected = [first + min(k, left - 1) for k in range(4)]
        assert batch.index[:, column].tolist() == expected
        assert batch.valid[:, column].tolist() == [k < left for k in range(4)]
        assert batch.weight[:, column].tolist() == [float(k < left) for k in range(4)]
        assert batch.is_first[0, column].item() == (first in starts)
