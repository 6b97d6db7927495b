"""An agent is recorded through every adapter: the true last observation, no row that only reset, whole episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from tests.contracts.counting import FORMS
from tests.fakes.envs import TensorCounter
from uniarena.agent import Agent
from uniarena.data import DataError, Episode, Recorder, load
from uniarena.envs import UniArenaNotice, make_env
from uniarena.envs.protocol import Env
from uniarena.run.recording import Play

LENGTHS = (1, 2, 3, 5)


def recorded(env: Env, path: Path, episodes: int, epsilon: float = 0.0, deterministic: bool = True) -> Path:
    agent = Agent.assemble(env, {"type": "ppo"}, policy={"hidden_sizes": [4]})
    recorder = Recorder(env.observation_space, env.action_space)
    Play(agent, env, episodes, epsilon, deterministic, 3).into(recorder)
    env.close()
    return recorder.save(path)


@pytest.mark.parametrize("end", ["termination", "truncation"])
@pytest.mark.parametrize("name", FORMS)
def test_recorded_episodes_are_those_of_the_environment(tmp_path: Path, name: str, end: str) -> None:
    data = load(recorded(FORMS[name](LENGTHS, end), tmp_path / "a.npz", 8))
    assert sorted(data.lengths.tolist()) == [1, 1, 2, 2, 3, 3, 5, 5]
    for episode in data:
        steps = len(episode.reward)
        assert episode.obs.ravel().tolist() == list(range(steps + 1))
        assert episode.reward.tolist() == [1.0] * steps
        assert episode.terminated.tolist() == [False] * (steps - 1) + [end == "termination"]
        assert episode.truncated.tolist() == [False] * (steps - 1) + [end == "truncation"]


def test_a_last_observation_that_the_simulator_loses_is_not_invented(tmp_path: Path) -> None:
    for end, transitions in (("truncation", 4), ("termination", 6)):
        with pytest.warns(UniArenaNotice):
            env = make_env(TensorCounter(1, [3], end, None))
        data = load(recorded(env, tmp_path / f"{end}.npz", 2))
        assert len(data) == transitions and sum(data.account.dropped.values()) == 6 - transitions
        assert data.unknown_finals == (2 if end == "termination" else 0)


def test_random_actions_are_as_many_as_was_asked_for(tmp_path: Path) -> None:
    env = make_env("CartPole-v1", num_envs=4)
    greedy = load(recorded(env, tmp_path / "a.npz", 4))
    assert len(np.unique(greedy.action(np.arange(len(greedy))))) <= 2
    all_random = load(recorded(make_env("CartPole-v1", num_envs=4), tmp_path / "b.npz", 60, epsilon=1.0))
    share = all_random.action(np.arange(len(all_random))).mean()
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(len(all_random))


def test_box_actions_are_those_that_the_environment_took(tmp_path: Path) -> None:
    env = make_env("Pendulum-v1", num_envs=2, wrappers=["rescale_action"], max_episode_steps=20)
    data = load(recorded(env, tmp_path / "a.npz", 2, epsilon=1.0))
    actions = data.action(np.arange(len(data)))
    assert data.action_space == spaces.Box(-2.0, 2.0, (1,), np.float32)
    assert 1.0 < np.abs(actions).max() <= 2.0
    theta = np.arctan2(*data.obs(np.arange(len(data)))[:, [1, 0]].T)
    speed = data.obs(np.arange(len(data)))[:, 2]
    cost = (
        theta**2 + 0.1 * speed**2 + 0.001 * actions[:, 0] ** 2
    )  # Gymnasium's, of the torque that was applied
    np.testing.assert_allclose(data.reward, -cost, atol=1e-4)


def test_parts_of_unequal_length_are_refused() -> None:
    recorder = Recorder(spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2))
    flags = np.zeros(2, bool)
    with pytest.raises(ValueError, match="obs has 2 rows; 3 were expected"):
        recorder.add(Episode(np.zeros((2, 1)), np.zeros(2, int), np.zeros(2), flags, flags, True))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"header": None}, "the array header of a recording is missing"),
        ({"length": None}, "the array length is missing"),
        ({"length": np.array([1.5, 1.5])}, "row 0 holds 1.5, which is no number of steps"),
        ({"length": np.array([3, np.nan])}, "row 1 holds nan"),
        ({"length": np.array([4, -1])}, "row 1 holds -1"),
    ],
)
def test_recordings_with_a_part_that_is_lost_or_damaged(
    tmp_path: Path, change: dict[str, np.ndarray | None], said: str
) -> None:
    recorder = Recorder(spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2))
    for steps in (1, 2):
        end = np.arange(steps) == steps - 1
        actions = np.zeros(steps, np.int64)
        recorder.add(Episode(np.zeros((steps + 1, 1)), actions, np.ones(steps), end, ~end & end, True))
    arrays = {**np.load(recorder.save(tmp_path / "a.npz")), **change}
    np.savez(tmp_path / "b.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(DataError, match=said):
        load(tmp_path / "b.npz")
