"""Odd sizes, huge numbers and NaN: finite parameters, or an error that says where to look, before a step is taken."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import uniarena
from uniarena import Agent, Trainer, make_env
from uniarena.config.guard import GuardConfig
from uniarena.optim import NonFiniteError


class Numbers(gym.Env[np.ndarray, Any]):
    """Normal observations `[3]` and rewards, multiplied by `scale` and `pays`; one value is replaced at step `at`.

    Args:
        obs, reward: what stands there instead at the `at`-th step of the environment's life.
    """

    def __init__(
        self,
        obs: float | None = None,
        reward: float | None = None,
        at: int = 17,
        box: bool = False,
        scale: float = 1.0,
        pays: float = 1.0,
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32) if box else spaces.Discrete(3)
        self.odd, self.at, self.scale, self.pays = (obs, reward), at, scale, pays
        self.t = self.life = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t, self.life = self.t + 1, self.life + 1
        obs, reward = self._draw(), self.pays * float(self.np_random.normal())
        if self.life == self.at:
            obs[1], reward = (
                new if new is not None else old for new, old in zip(self.odd, (obs[1], reward), strict=True)
            )
        return obs, reward, self.t >= 10, False, {}

    def _draw(self) -> np.ndarray:
        return (self.np_random.normal(size=3) * self.scale).astype(np.float32)


def train(
    spec: Any,
    env_steps: int = 96,
    *,
    num_envs: int = 1,
    wrappers: Any = (),
    guard: GuardConfig | None = None,
    **learner: Any,
) -> Trainer:
    """A trainer after `env_steps`; its agent's parameters are finite, also where an error came."""
    env = make_env(spec, num_envs, wrappers=wrappers)
    agent = Agent.assemble(env, {"type": "ppo", "n_steps": 32, **learner})
    trainer = Trainer(agent, env, guard=guard)
    try:
        trainer.fit(env_steps)
    finally:
        trainer.close()
        assert all(bool(p.isfinite().all()) for p in agent.model.parameters())
    return trainer


def losses(trainer: Trainer) -> list[float]:
    return [
        trainer.metrics[name] for name in ("loss", "policy_loss", "value_loss", "entropy", "kl", "grad_norm")
    ]


@pytest.mark.parametrize(
    ("n_steps", "batch_size", "told"),
    [
        (65, 64, True),
        (64, 64, False),
        (1, 64, False),
        (1, 1, False),
        (16, 1, False),
        (7, 3, True),
        (5, 1000, False),
    ],
)
def test_minibatches_of_any_size(
    n_steps: int, batch_size: int, told: bool, caplog: pytest.LogCaptureFixture
):  # case B27
    with caplog.at_level(logging.WARNING, "uniarena"):
        trainer = train("CartPole-v1", 3 * n_steps, n_steps=n_steps, batch_size=batch_size, n_epochs=2)
    assert all(math.isfinite(loss) for loss in losses(trainer))
    assert ("do not divide" in caplog.text) == told


@pytest.mark.parametrize("learner", ["ppo", "a2c"])
def test_one_row_of_one_environment(learner: str):  # case B27
    wrappers = ["normalize_observation", "normalize_reward"]
    trainer = train("CartPole-v1", 5, wrappers=wrappers, type=learner, n_steps=1)
    assert trainer.counters.updates == 5 and all(math.isfinite(loss) for loss in losses(trainer))


@pytest.mark.parametrize("dims", [3_000, 9_000])
def test_thousands_of_action_dimensions(dims: int):  # case B29
    class Wide(Numbers):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Box(-1, 1, (dims,), np.float32)

    trainer = train(Wide, 128, n_steps=128, n_epochs=10)
    assert all(math.isfinite(loss) for loss in losses(trainer))
    assert trainer.metrics["kl"] > 0.1  # and it is seen that this step was far too long


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("box", [False, True], ids=["discrete", "box"])
@pytest.mark.parametrize(
    ("odd", "where"),
    [
        ({"obs": NAN}, "observation of environment 1 was nan at [1], at step 17"),
        ({"reward": NAN}, "reward of environment 1 was nan, at step 16"),
        ({"reward": -INF}, "reward of environment 1 was -inf, at step 16"),
        ({"obs": NAN, "at": 20}, "final observation of environment 1 was nan at [1], at step 19"),
    ],
    ids=str,
)
def test_a_number_that_is_none_is_traced_to_its_environment(odd: dict[str, Any], where: str, box: bool):
    makes = [lambda: Numbers(box=box), lambda: Numbers(box=box, **odd)]
    with pytest.raises(NonFiniteError) as caught:
        train(makes, 64, num_envs=2)
    assert where in str(caught.value) and caught.value.env == 1


def test_it_is_traced_to_its_key():
    class Sensors(gym.ObservationWrapper):
        def __init__(self) -> None:
            super().__init__(Numbers(obs=NAN))
            self.observation_space = spaces.Dict({"imu": spaces.Dict({"gyro": self.env.observation_space})})

        def observation(self, obs: Any) -> Any:
            return {"imu": {"gyro": obs}}

    with pytest.raises(NonFiniteError) as caught:
        train(Sensors, 64)
    assert "observation.imu.gyro of environment 0 was nan at [1], at step 17" in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "wrappers"),
    [
        ({"scale": 1e30}, []),
        ({"scale": 1e30}, ["normalize_observation"]),
        ({"obs": INF}, ["normalize_observation"]),
        ({"obs": 3e38}, ["normalize_observation"]),
        ({"scale": 0.0}, ["normalize_observation"]),
        ({"pays": 1e12}, []),
        ({"pays": 0.0}, ["normalize_reward"]),
        ({"reward": 1e30}, ["normalize_reward"]),
        ({"reward": -1e12, "scale": 1e-30}, ["normalize_observation", "normalize_reward"]),
    ],
    ids=str,
)
def test_huge_and_constant_numbers_leave_parameters_finite(spec: dict[str, Any], wrappers: list[str]):
    guard = GuardConfig(rule="clip", max_abs=3e38)  # so that networks and normalisers see the huge ones
    for box in (False, True):
        trainer = train(lambda box=box: Numbers(box=box, **spec), wrappers=wrappers, guard=guard)
        assert all(math.isfinite(loss) for loss in losses(trainer))


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_the_ends_of_the_discount(gamma: float):
    trainer = train(Numbers, wrappers=["normalize_reward"], gamma=gamma, gae_lambda=1.0)
    assert all(math.isfinite(loss) for loss in losses(trainer))


def test_a_wild_learning_rate_ends_by_name_and_not_in_nan():
    with pytest.raises(NonFiniteError, match=r"log_std.*learner\.learning_rate"):
        train(lambda: Numbers(box=True), 640, learning_rate=1e6, max_grad_norm=None)


def test_what_is_not_finite_is_written_as_plain_json(tmp_path: Path):
    """Explained variance of one row is undefined; the file stays readable by any JSON reader."""
    config = {"environment": {"id": "CartPole-v1"}, "learner": {"type": "ppo", "n_steps": 1, "batch_size": 1}}
    limits = ["training.total_timesteps=3", "training.n_eval_episodes=1"]
    uniarena.train(config, limits, run_dir=tmp_path / "run", quiet=True)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
