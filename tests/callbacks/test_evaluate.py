"""The evaluation callback: when it runs, in what environment, what it reports."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.callbacks.fake_trainer import FakeAgent, FakeTrainer
from tests.fakes.envs import CounterEnv
from uniarena.envs import make_env
from uniarena.trainer.callbacks.evaluate import Evaluate
from uniarena.trainer.events import ValidationEpoch


class Factory:
    """Makes evaluation environments and remembers how it was asked."""

    def __init__(self, spec=CounterEnv, **kwargs) -> None:
        self.spec, self.kwargs, self.asked, self.closed = spec, kwargs, [], 0

    def __call__(self, num_envs: int, seed: int | None = None):
        self.asked.append((num_envs, seed))
        env = make_env(self.spec, num_envs, seed=seed, kwargs=self.kwargs)
        close = env.close

        def closing() -> None:
            self.closed += 1
            close()

        env.close = closing
        return env


def evaluated_at(trainer: FakeTrainer) -> list[str]:
    return [event.result.mode for event in trainer.emitted if isinstance(event, ValidationEpoch)]


def test_runs_when_due_and_in_both_modes_at_the_end() -> None:
    factory = Factory(length=3)
    trainer = FakeTrainer(Evaluate(every_env_steps=200, n_episodes=4), total=500, env_factory=factory).start()
    shown = []
    while not trainer.done:
        trainer.iterate()
        shown.append("eval/return_mean" in trainer.metrics)
    assert shown == [False, True, False, True, True]
    trainer.end()
    assert evaluated_at(trainer) == ["deterministic", "deterministic", "stochastic", "deterministic"]
    assert factory.asked == [(4, trainer.streams.seed_for("evaluation"))] and factory.closed == 1


def test_figures_say_which_mode_they_are_of() -> None:
    trainer = FakeTrainer(Evaluate(n_episodes=2), total=100, env_factory=Factory(length=3)).start()
    trainer.iterate()
    assert trainer.metrics["eval/return_mean"] == 3.0 and trainer.metrics["eval/episodes"] == 2
    assert trainer.metrics["eval_stochastic/return_mean"] == 3.0
    other = FakeTrainer(
        Evaluate(n_episodes=2, deterministic=False), total=100, env_factory=Factory(length=3)
    ).start()
    other.iterate()
    assert {"eval/length_mean", "eval_deterministic/length_mean"} <= set(other.metrics)
    assert evaluated_at(other) == ["deterministic", "stochastic"]


def test_both_modes_each_time_on_request() -> None:
    callback = Evaluate(every_env_steps=100, also_stochastic=True, n_episodes=1)
    trainer = FakeTrainer(callback, env_factory=Factory(length=2)).start()
    trainer.iterate()
    assert set(callback.results) == {"deterministic", "stochastic"}


def test_a_stop_asked_for_by_a_later_callback_still_gets_a_final_evaluation() -> None:
    trainer = FakeTrainer(Evaluate(n_episodes=1), env_factory=Factory(length=2)).start()
    trainer.iterate()
    assert evaluated_at(trainer) == []
    trainer.end("plateau")
    assert evaluated_at(trainer) == ["stochastic", "deterministic"]
    assert trainer.metrics["eval/return_mean"] == 2.0


def test_an_interrupt_is_not_kept_waiting() -> None:
    trainer = FakeTrainer(Evaluate(n_episodes=1), env_factory=Factory(length=2)).start()
    trainer.request_stop("interrupted")
    trainer.iterate()
    trainer.end("interrupted")
    assert evaluated_at(trainer) == []


def test_no_environment_is_made_before_it_is_needed() -> None:
    factory = Factory()
    trainer = FakeTrainer(Evaluate(every_env_steps=500, at_end=False), env_factory=factory).start()
    trainer.iterate()
    trainer.end()
    assert factory.asked == []


@pytest.mark.parametrize(
    ("fields", "count"), [({"n_episodes": 3}, 3), ({"n_episodes": 50}, 8), ({"num_envs": 5}, 5)]
)
def test_number_of_environments(fields: dict, count: int) -> None:
    factory = Factory(length=1)
    FakeTrainer(Evaluate(**fields), total=100, env_factory=factory).start().iterate()
    assert factory.asked[0][0] == count


def test_an_exception_closes_the_environment() -> None:
    factory = Factory(length=1)
    callback = Evaluate(every_env_steps=100, n_episodes=1)
    trainer = FakeTrainer(callback, env_factory=factory).start()
    trainer.iterate()
    callback.on_exception(trainer, None)
    assert factory.closed == 1


class Lottery(gym.Env):
    """One-step episodes with a random reward."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(self.np_random.random()), True, False, {}


def returns_by_step(trainer: FakeTrainer) -> list[tuple[float, ...]]:
    return [event.result.returns for event in trainer.emitted if isinstance(event, ValidationEpoch)]


def make_trainer(folder: Path | None = None) -> FakeTrainer:
    callback = Evaluate(every_env_steps=200, n_episodes=3)
    return FakeTrainer(callback, run_dir=folder, total=1000, env_factory=Factory(Lottery))


def test_evaluations_repeat_and_those_after_a_resume_are_those_that_would_have_been(
    tmp_path: Path,
) -> None:  # case B59
    whole, again = make_trainer().start(), make_trainer().start()
    for trainer in (whole, again):
        trainer.run(1000)
    assert returns_by_step(whole) == returns_by_step(again)
    assert len(set(returns_by_step(whole)[:4])) == 4  # fresh episodes each time

    cut = make_trainer(tmp_path).start()
    cut.run(500)
    folder = cut.save("interrupt")
    resumed = make_trainer(tmp_path).resume(folder)
    resumed.run(1000)
    assert returns_by_step(cut) + returns_by_step(resumed) == returns_by_step(whole)


def test_the_seconds_it_took_are_reported() -> None:
    trainer = FakeTrainer(Evaluate(n_episodes=1), total=100, env_factory=Factory(length=2)).start()
    trainer.iterate()
    assert all(event.result.seconds > 0 for event in trainer.emitted if isinstance(event, ValidationEpoch))


def test_the_agent_is_told_which_mode_is_wanted() -> None:
    asked = []

    def rule(obs, is_first, deterministic, generator):
        asked.append(deterministic)
        return torch.zeros(len(is_first), dtype=torch.int64)

    trainer = FakeTrainer(Evaluate(n_episodes=1), total=100, env_factory=Factory(length=1))
    trainer.agent = FakeAgent(rule)
    trainer.start().iterate()
    assert asked == [False, True]
