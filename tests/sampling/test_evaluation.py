"""Evaluation: whole episodes, no preference for short ones, raw rewards, nothing of training moved."""

import json
import random

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from tests.callbacks.fake_trainer import FakeAgent
from tests.fakes.envs import CounterEnv, CounterVectorEnv, MaskInfoEnv, TensorCounter
from uniarena.envs import make_env
from uniarena.sampling.evaluation import EvalResult, evaluate_agent
from uniarena.seeding import seed_globals


def counters(*lengths: int, **kwargs):
    """One environment per entry; the k-th one's episodes last lengths[k] steps."""
    return make_env([lambda n=n: CounterEnv(n, **kwargs) for n in lengths], len(lengths))


def test_every_column_runs_its_share_so_short_episodes_are_not_preferred() -> None:
    result = evaluate_agent(FakeAgent(), counters(1, 50), 4)
    assert sorted(result.returns) == [1, 1, 50, 50] and result.return_mean == 25.5
    assert sorted(result.lengths) == [1, 1, 50, 50]


def test_a_remainder_goes_to_the_first_columns() -> None:
    assert sorted(evaluate_agent(FakeAgent(), counters(1, 10, 20), 4).returns) == [1, 1, 10, 20]
    assert sorted(evaluate_agent(FakeAgent(), counters(1, 10, 20), 2).returns) == [1, 10]


@pytest.mark.parametrize("end", ["termination", "truncation"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_reset_rows_count_nothing_in_any_autoreset_mode(mode: AutoresetMode, end: str) -> None:
    env = make_env(CounterVectorEnv(4, (1, 2, 3, 5), mode, end), 4)
    agent = FakeAgent()
    result = evaluate_agent(agent, env, 12)
    assert sorted(result.returns) == [1, 1, 1, 2, 2, 2, 3, 3, 3, 5, 5, 5]
    assert sorted(result.lengths) == sorted(result.returns)


@pytest.mark.filterwarnings("ignore::uniarena.envs.UniArenaNotice")
@pytest.mark.parametrize("final", ["info", "dense", None])
def test_tensor_environments(final: str | None) -> None:
    agent = FakeAgent(lambda obs, first, deterministic, generator: torch.zeros(len(first), 1))
    result = evaluate_agent(agent, make_env(TensorCounter(4, final=final), 4), 8)
    assert sorted(result.returns) == [1, 1, 2, 2, 3, 3, 5, 5]


def test_the_first_observation_of_an_episode_is_marked_and_the_recurrent_state_begins_anew() -> None:
    agent = FakeAgent()
    evaluate_agent(agent, counters(3), 2)
    assert [float(obs) for obs, _ in agent.seen] == [0, 1, 2, 0, 1, 2]
    assert [bool(first) for _, first in agent.seen] == [True, False, False, True, False, False]
    assert agent.state.tolist() == [3.0]


def test_masks_reach_the_agent() -> None:
    def obey(obs, is_first, deterministic, generator):
        return obs["action_mask"].int().argmax(-1)

    result = evaluate_agent(FakeAgent(obey), make_env(MaskInfoEnv, 2, kwargs={"length": [4, 6]}), 4)
    assert result.return_mean == 5.0


def test_returns_are_in_raw_reward() -> None:  # case B61
    env = make_env(CounterEnv, 2, kwargs={"length": 4, "reward": 10.0}, wrappers=["clip_reward"])
    assert evaluate_agent(FakeAgent(), env, 2).return_mean == 40.0


def test_success_is_reported_where_the_environment_says_it() -> None:
    env = make_env(CounterEnv, 2, kwargs={"length": 4, "metrics": True})
    assert evaluate_agent(FakeAgent(), env, 4).success_rate == 1.0
    assert evaluate_agent(FakeAgent(), counters(4), 2).success_rate is None


class Chance(gym.Env):
    """One step; reward from the environment's own stream or, as careless code does, from the global ones."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, careless: bool = False) -> None:
        self.careless = careless

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        own = self.np_random.random()
        loose = random.random() + np.random.random() + float(torch.rand(()))  # noqa: NPY002
        return np.zeros(1, np.float32), (loose if self.careless else own) + action, True, False, {}


@pytest.mark.parametrize("careless", [False, True])
def test_a_seed_repeats_an_evaluation_and_another_one_does_not(careless: bool) -> None:
    env = make_env(Chance, 2, kwargs={"careless": careless})
    first, again, other = (evaluate_agent(FakeAgent(), env, 6, seed=seed) for seed in (3, 3, 4))
    assert first.returns == again.returns != other.returns


def test_training_streams_do_not_notice_an_evaluation() -> None:
    seed_globals(1)
    expected = random.random(), np.random.random(), float(torch.rand(()))  # noqa: NPY002
    agent, env = FakeAgent(), make_env(Chance, 2, kwargs={"careless": True})
    seed_globals(1)
    evaluate_agent(agent, env, 4)
    assert (random.random(), np.random.random(), float(torch.rand(()))) == expected  # noqa: NPY002


class MatchingPennies(gym.Env):
    """The agent wins where both show the same; the opponent avoids what the agent showed most so far."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.played, self.t = [0, 0], 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        opponent = int(self.played[0] >= self.played[1])
        self.played[action] += 1
        self.t += 1
        reward = 1.0 if action == opponent else -1.0
        return np.zeros(1, np.float32), reward, self.t >= 20, False, {}


def test_the_report_names_its_mode_and_the_modes_differ_where_the_best_policy_is_stochastic() -> (
    None
):  # case B58
    def mixed(obs, is_first, deterministic, generator):
        if deterministic:
            return torch.zeros(len(is_first), dtype=torch.int64)
        return torch.randint(2, (len(is_first),), generator=generator)

    env = make_env(MatchingPennies, 4)
    fixed = evaluate_agent(FakeAgent(mixed), env, 20, deterministic=True)
    sampled = evaluate_agent(FakeAgent(mixed), env, 20, deterministic=False)
    assert fixed.mode == "deterministic" and sampled.mode == "stochastic"
    assert fixed.to_json()["mode"] == "deterministic" and str(sampled).startswith("stochastic, 20 episodes")
    assert sampled.return_mean > fixed.return_mean + 5
    again = evaluate_agent(FakeAgent(mixed), env, 20, deterministic=False)
    assert again.returns == sampled.returns


def test_an_episode_without_end_is_cut_and_said(caplog: pytest.LogCaptureFixture) -> None:
    result = evaluate_agent(FakeAgent(), counters(10**9, 3), 4, max_episode_steps=10)
    assert sorted(result.lengths) == [3, 3, 10, 10] and sorted(result.returns) == [3, 3, 10, 10]
    assert "2 evaluation episodes did not end within 10 steps" in caplog.text


def test_the_report() -> None:
    result = EvalResult("deterministic", (100.0, 1.0, 2.0, 3.0), (1, 2, 3, 4), seconds=1.5)
    assert result.to_json() == {
        "episodes": 4,
        "return_mean": 26.5,
        "return_std": pytest.approx(np.std([100, 1, 2, 3])),
        "return_iqm": 2.5,
        "length_mean": 2.5,
        "mode": "deterministic",
    }
    json.dumps(result.to_json(), allow_nan=False)
    assert isinstance(result.to_json()["episodes"], int)


def test_the_environment_is_left_open_and_can_be_used_again() -> None:
    env = counters(2, 3)
    assert evaluate_agent(FakeAgent(), env, 2).returns == evaluate_agent(FakeAgent(), env, 2).returns


def test_no_episodes_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        evaluate_agent(FakeAgent(), counters(2), 0)
