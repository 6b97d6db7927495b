"""Curricula: each rule by hand on made-up episodes, the way to the environment in every mode, exact resumes."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest
import torch

from tests.fakes.envs import GrowingCorridor
from uniarena import Agent, Trainer, make_env
from uniarena.config import ConfigError
from uniarena.sampling import Episode
from uniarena.trainer.callbacks.curriculum import CurriculumConfig, CurriculumScheduler, Standing
from uniarena.trainer.events import BatchCollected, TrainingStart, UpdateEnd


class Stand:
    """Just what a scheduler asks of a trainer; keeps what the environment was told."""

    def __init__(self, ahead: int = 0) -> None:
        self.told: list[Any] = []
        self.logged: dict[str, float] = {}
        self.counters = SimpleNamespace(env_steps=0)
        tell = lambda name, value: self.told.append((name, value))  # noqa: E731
        self.sampler = SimpleNamespace(set_attr=tell, ahead=ahead)

    def log(self, name: str, value: float) -> None:
        self.logged[name] = value

    def chunk(self, scheduler: Any, episodes: list[tuple[float, float]], rows: int = 10) -> float:
        """A chunk of `rows` rows with (return, success) of episodes of one step at its end → the difficulty."""
        self.counters.env_steps += rows
        ended = [Episode(0, rows - 1, r, 1, {}, s) for r, s in episodes]
        rollout: Any = SimpleNamespace(T=rows)
        scheduler.on_batch_collected(self, BatchCollected(rollout, ended))
        return float(scheduler.difficulty)


WON, LOST, SAYS_NOTHING = (1.0, 1.0), (0.0, 0.0), (0.0, math.nan)


def test_the_rate_of_successes_moves_it_both_ways_within_bounds() -> None:
    scheduler, stand = CurriculumScheduler(window=4, step=0.5, raise_at=0.75, lower_at=0.25), Stand()
    scheduler.on_training_start(stand, TrainingStart())
    assert stand.told == [("difficulty", 0.0)]
    assert stand.chunk(scheduler, [WON, WON, WON]) == 0.0  # three are no window
    assert stand.chunk(scheduler, [LOST]) == 0.5  # 3 of 4
    assert stand.chunk(scheduler, [WON, LOST, WON]) == 0.5  # judged anew
    assert stand.chunk(scheduler, [LOST]) == 0.5  # a half lies between the bounds
    assert stand.chunk(scheduler, [LOST]) == 0.0  # a quarter of the last four
    assert stand.chunk(scheduler, [LOST] * 4) == 0.0  # no lower than the start
    assert [stand.chunk(scheduler, [WON] * 4) for _ in range(3)] == [0.5, 1.0, 1.0]
    assert stand.told == [("difficulty", value) for value in (0.0, 0.5, 0.0, 0.5, 1.0)]
    assert stand.logged == {"curriculum/difficulty": 1.0}


def test_successes_and_failures_in_a_row() -> None:
    scheduler = CurriculumScheduler(rules=("consecutive_successes",), successes=2, failures=3, step=0.25)
    stand = Stand()
    assert [stand.chunk(scheduler, [e]) for e in (WON, LOST, WON, WON)] == [0.0, 0.0, 0.0, 0.25]
    assert [stand.chunk(scheduler, [e]) for e in (LOST, LOST, WON, LOST, LOST, LOST)][-2:] == [0.25, 0.0]


def test_a_bound_on_the_return_says_what_a_success_is() -> None:
    scheduler = CurriculumScheduler(
        rules=("consecutive_successes",), successes=1, failures=1, success_return=3.0
    )
    stand = Stand()
    assert stand.chunk(scheduler, [(3.0, math.nan)]) == 0.1
    assert stand.chunk(scheduler, [(2.9, 1.0)]) == 0.0


def test_the_mean_return_and_a_difficulty_that_falls() -> None:
    scheduler = CurriculumScheduler(
        rules=("return_threshold",), raise_return=10.0, lower_return=-10.0, window=2, start=5, end=1, step=2
    )
    stand = Stand()
    assert stand.chunk(scheduler, [(8.0, math.nan), (12.0, math.nan)]) == 3
    assert stand.told[-1] == ("difficulty", 3) and isinstance(stand.told[-1][1], int)
    assert stand.chunk(scheduler, [(-12.0, math.nan), (-8.0, math.nan)]) == 5


def test_low_entropy_makes_it_easier_for_a_while() -> None:
    scheduler = CurriculumScheduler(
        rules=("success_rate", "entropy_floor"),
        min_entropy=0.5,
        easier_env_steps=30,
        window=1,
        start=0,
        end=9,
        step=1,
    )
    stand = Stand()
    assert [stand.chunk(scheduler, [WON]) for _ in range(3)] == [1, 2, 3]
    scheduler.on_update_end(stand, UpdateEnd({"entropy": 0.4}))
    assert stand.chunk(scheduler, [WON]) == 2  # easier outvotes harder
    assert [stand.chunk(scheduler, [WON]) for _ in range(2)] == [
        2,
        2,
    ]  # held, and not lowered again, for 30 steps
    scheduler.on_update_end(stand, UpdateEnd({"entropy": 0.6}))
    assert stand.chunk(scheduler, [WON]) == 3


def test_entropy_alone_leads_back_as_well() -> None:
    scheduler = CurriculumScheduler(
        rules=("entropy_floor",), min_entropy=0.5, easier_env_steps=20, start=0, end=9, step=1
    )
    stand = Stand()
    assert stand.chunk(scheduler, []) == 0  # nothing is known yet
    scheduler.on_update_end(stand, UpdateEnd({"entropy": 0.6}))
    assert [stand.chunk(scheduler, []) for _ in range(3)] == [1, 2, 3]
    scheduler.on_update_end(stand, UpdateEnd({"entropy": 0.4}))
    assert [stand.chunk(scheduler, []) for _ in range(3)] == [2, 2, 1]
    scheduler.on_update_end(stand, UpdateEnd({"entropy": 0.6}))
    assert [stand.chunk(scheduler, []) for _ in range(3)] == [1, 2, 3]


def test_episodes_that_began_before_a_move_do_not_count() -> None:
    scheduler, stand = CurriculumScheduler(window=1, start=0, end=9, step=1), Stand()
    assert stand.chunk(scheduler, [WON]) == 1
    rollout: Any = SimpleNamespace(T=10)
    late = Episode(0, 4, 1.0, 6, {}, 1.0)  # six steps long at row 4: its first was in the chunk before
    scheduler.on_batch_collected(stand, BatchCollected(rollout, [late]))
    assert scheduler.difficulty == 1
    scheduler.on_batch_collected(stand, BatchCollected(rollout, [Episode(0, 4, 1.0, 15, {}, 1.0)]))
    assert scheduler.difficulty == 2, "fifteen steps long at row 14 since the move"


def test_what_was_under_way_at_a_move_does_not_count() -> None:
    """A sampler that works ahead collects one more chunk at the difficulty before."""
    scheduler, stand = CurriculumScheduler(window=1, start=0, end=9, step=1), Stand(ahead=1)
    assert [stand.chunk(scheduler, [WON]) for _ in range(5)] == [1, 1, 2, 2, 3]


def test_whoever_says_nothing_of_success_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, stand = CurriculumScheduler(window=3), Stand()
    with caplog.at_level(logging.WARNING):
        for _ in range(9):
            assert stand.chunk(scheduler, [SAYS_NOTHING]) == 0.0
    assert [r.message.count("is_success") for r in caplog.records] == [1]


class Own(CurriculumScheduler):
    """Harder whenever an episode paid anything, twice as hard each time."""

    def evaluate_difficulty(self, standing: Standing) -> int:
        return int(bool(standing.returns) and standing.returns[-1] > 0.0)

    def adjust(self, difficulty: float, vote: int) -> float:
        return max(1.0, 2.0 * difficulty)


def test_rules_of_a_users_own() -> None:
    scheduler, stand = Own(end=100.0), Stand()
    assert [stand.chunk(scheduler, [e]) for e in (LOST, WON, WON, LOST, WON)] == [0.0, 1.0, 2.0, 2.0, 4.0]


def test_its_state_goes_on() -> None:
    fields = {"rules": ("success_rate", "consecutive_successes"), "window": 5, "successes": 4}
    one, two, stand = CurriculumScheduler(**fields), CurriculumScheduler(**fields), Stand()
    for episode in (WON, WON, WON, SAYS_NOTHING):
        stand.chunk(one, [episode])
    two.load_state_dict(one.state_dict())
    assert one.state_dict() == two.state_dict()
    assert stand.chunk(one, [WON]) == stand.chunk(two, [WON]) == 0.1


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"end": 0.0}, "end"),
        ({"step": 0.0}, "step"),
        ({"rules": ()}, "rules"),
        ({"lower_at": 0.9}, "raise_at"),
        ({"rules": ("return_threshold",)}, "raise_return"),
        ({"rules": ("return_threshold",), "raise_return": 1.0, "lower_return": 2.0}, "raise_return"),
        ({"rules": ("entropy_floor",)}, "min_entropy"),
    ],
)
def test_what_cannot_move_is_refused(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as error:
        CurriculumConfig(**fields)
    assert error.value.path == path


class BySetter(GrowingCorridor):
    """Told by a method."""

    def set_difficulty(self, value: float) -> None:
        self.hardness = ("method", value)


@pytest.mark.parametrize("vectorization", ["serial", "sync", "async"])
@pytest.mark.parametrize("env_class", [GrowingCorridor, BySetter])
def test_an_attribute_or_a_method_in_every_mode(vectorization: str, env_class: Any) -> None:
    env = make_env(env_class, 2, vectorization=vectorization, wrappers=[gym.Wrapper, "normalize_observation"])
    agent = Agent.assemble(env, {"type": "ppo", "n_steps": 8, "batch_size": 16, "n_epochs": 1})
    scheduler = CurriculumScheduler(start=1, end=20, step=1)
    trainer = Trainer(agent, env, callbacks=[scheduler])
    trainer.fit(16)
    name, value = ("hardness", ("method", 1)) if env_class is BySetter else ("difficulty", 1)
    assert env.get_attr(name) == [value] * 2
    trainer.close()


def test_gymnasiums_own_processes_are_told_by_method_too() -> None:
    env = make_env(gym.vector.AsyncVectorEnv([BySetter] * 2))
    env.set_attr("difficulty", 0.25)
    assert list(env.get_attr("hardness")) == [("method", 0.25)] * 2
    env.close()


def test_a_corridor_grows_with_the_agent() -> None:
    env = make_env(GrowingCorridor, 4)
    agent = Agent.assemble(
        env, {"type": "ppo", "n_steps": 32, "batch_size": 64, "learning_rate": 3e-3}, seed=0
    )
    scheduler = CurriculumScheduler(start=1, end=20, step=1, window=8)
    trainer = Trainer(agent, env, callbacks=[scheduler])
    trainer.fit(6_000)
    assert scheduler.difficulty >= 10
    assert trainer.metrics["curriculum/difficulty"] == scheduler.difficulty
    assert torch.isfinite(torch.tensor(trainer.metrics["return_mean"]))
    trainer.close()
