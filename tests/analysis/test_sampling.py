"""Which way of stepping environments is fastest: measured by a clock that the tests move."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from uniarena import make_env
from uniarena import run as runs
from uniarena.analysis import rates, sampling
from uniarena.analysis.rates import Rate
from uniarena.analysis.sampling import Row, ThreadRow
from uniarena.cli import invoke
from uniarena.config import ConfigError, WorkersConfig, load
from uniarena.envs.actions import ActionMap
from uniarena.envs.protocol import Step


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """Columns of which a step takes `cost` seconds of the clock."""

    tensor = False
    device = torch.device("cpu")

    def __init__(self, num_envs: int, clock: Clock, cost: float) -> None:
        self.num_envs, self.clock, self.cost = num_envs, clock, cost
        self.observation_space, self.action_map = spaces.Box(0, 1, (1,)), ActionMap(spaces.Discrete(3))
        self.steps, self.closed = 0, False

    def reset(self, seed: int | None = None) -> np.ndarray:
        return np.zeros((self.num_envs, 1))

    def step(self, action: np.ndarray) -> Step:
        assert action.shape == (self.num_envs,) and ((action >= 0) & (action < 3)).all()
        self.steps += 1
        self.clock.now += self.cost
        return Step(
            np.zeros((self.num_envs, 1)), *[np.zeros(self.num_envs)] * 3, np.zeros(self.num_envs, bool)
        )

    def close(self) -> None:
        self.closed = True


def test_a_rate_counts_the_steps_of_all_columns() -> None:
    clock = Clock()
    env: Any = Fake(4, clock, 0.5)
    rate = rates.environment_rate(env, 2.0, clock)
    assert rate == Rate(16, 2.0) and rate.per_second == 8.0
    assert env.steps == 3 + 4  # the first three are not counted
    assert rates.environment_rate(env, 0.1, clock).count == 12  # three at least


def _measured(costs: dict[str, float], counts: list[int]) -> list[Row]:
    clock, made = Clock(), []

    def make(count: int, how: Any) -> Any:
        mode = "async" if isinstance(how, WorkersConfig) else "serial" if how == "auto" else how
        if mode not in costs:
            raise ConfigError(f"there is no {mode}")
        workers = how.processes if isinstance(how, WorkersConfig) else 1
        made.append(Fake(count, clock, costs[mode] * count / workers))
        return made[-1]

    rows = list(sampling.measure(make, counts, 1.0, clock))
    assert made and all(env.closed for env in made)
    return rows


def test_every_mode_is_measured_and_what_does_not_exist_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "cores", lambda: 2)
    rows = _measured({"serial": 2.0, "async": 2.0}, [1, 8, 64])
    assert [(row.num_envs, row.mode, row.processes) for row in rows if row.rate] == [
        (1, "serial", None),
        (8, "serial", None),
        (8, "async", 2),
        (8, "async", 8),
        (8, "producers", 2),
        (64, "serial", None),
        (64, "async", 2),
        (64, "producers", 2),
    ]
    assert {row.mode: row.why for row in rows if row.why} == {
        mode: f"there is no {mode}" for mode in ("sync", "native", "envpool", "tensor")
    }
    assert [row.per_second for row in rows if row.rate] == [0.5, 0.5, 1.0, 4.0, 1.0, 0.5, 1.0, 1.0]


def test_slow_environments_are_worth_worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "cores", lambda: 2)
    advice = sampling.advise(_measured({"serial": 5e-3, "async": 5e-3}, [1, 16]), 16)
    assert advice.environment == {"num_envs": 16, "vectorization": "async", "workers": {"processes": 2}}
    assert any("5 ms, above the 1 ms" in reason and "they do." in reason for reason in advice.reasons)
    assert advice.yaml().splitlines() == [
        "environment:",
        "  num_envs: 16",
        "  vectorization: async",
        "  workers: {processes: 2}",
    ]


def test_producers_are_advised_where_they_leave_a_core_to_the_learner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A simulator that waits for something else takes none."""
    monkeypatch.setattr(sampling, "cores", lambda: 2)
    rows = [Row(8, "serial", None, Rate(100, 1.0)), Row(8, "producers", 2, Rate(190, 1.0), cores=0.3)]
    advice = sampling.advise(rows, 8)
    assert advice.yaml().splitlines() == [
        "environment:",
        "  num_envs: 8",
        "  vectorization: auto",
        "sampling:",
        "  type: pipelined",
        "  producers: 2",
    ]
    assert advice.reasons[0] == "2 producers give 190 steps/s, 1.9 times as many as serial."
    rows[1] = Row(8, "producers", 2, Rate(190, 1.0), cores=1.9)
    assert sampling.advise(rows, 8).environment["vectorization"] == "serial"


def test_processes_that_cannot_make_their_environment_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "cores", lambda: 2)

    def make(count: int, how: Any) -> Any:
        if how == "serial":
            return Fake(count, Clock(), 1.0)
        raise ConfigError(f"no {how} here")

    rows = {row.mode: row.why for row in sampling.measure(make, [2], 0.01) if row.rate is None}
    assert "no auto here" in rows["producers"]


def test_a_small_gain_is_not_worth_a_key() -> None:
    rows = [
        Row(8, "serial", None, Rate(100, 1.0)),
        Row(8, "sync", None, Rate(110, 1.0)),
        Row(8, "native", None, Rate(124, 1.0)),
    ]
    assert sampling.advise(rows, 8).environment["vectorization"] == "serial"
    rows.append(Row(8, "tensor", None, Rate(126, 1.0)))
    assert sampling.advise(rows, 8).environment["vectorization"] == "tensor"


def test_without_a_config_the_number_of_environments_is_advised_too() -> None:
    rows = [Row(n, "serial", None, Rate(rate, 1.0)) for n, rate in ((1, 10), (8, 95), (64, 100))]
    assert sampling.advise(rows).environment == {"num_envs": 8, "vectorization": "serial"}
    assert sampling.advise(rows, 1).environment["num_envs"] == 1
    with pytest.raises(ValueError, match="no way"):
        sampling.advise([Row(1, "serial", None, None, "broken")])


def test_fewer_threads_unless_more_gain_a_quarter() -> None:
    def rows(two: float) -> list[ThreadRow]:
        return [ThreadRow(n, Rate(1, 1.0), Rate(1, seconds)) for n, seconds in ((1, 0.010), (2, two))]

    assert sampling.advise_threads(rows(0.009))[0] == 1
    count, why = sampling.advise_threads(rows(0.005))
    assert count == 2 and "10 ms with 1, 5 ms with 2" in why


def test_random_actions_respect_masks() -> None:
    class Masked(Fake):
        def __init__(self) -> None:
            super().__init__(5, Clock(), 0.0)
            mask = spaces.Box(0, 1, (3,), np.int8)
            self.observation_space = spaces.Dict({"obs": spaces.Box(0, 1, (1,)), "action_mask": mask})

    actions = rates.random_actions(Masked())  # type: ignore[arg-type]
    mask = np.tile(np.array([0, 1, 0], np.int8), (5, 1))
    assert actions({"action_mask": mask}).tolist() == [1] * 5


def test_random_actions_of_a_tensor_environment_are_tensors() -> None:
    env = make_env("Pendulum-v1", 3, vectorization="tensor")
    action = rates.random_actions(env)(None)
    assert isinstance(action, torch.Tensor) and action.shape == (3, 1) and action.dtype == torch.float32


def test_the_answer_of_an_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["tune-sampling", "CartPole-v1", "--envs", "2,1", "--seconds", "0.01", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["env"] == "CartPole-v1" and found["threads"] == []
    assert [row["num_envs"] for row in found["rows"]] == sorted(row["num_envs"] for row in found["rows"])
    measured = {(row["num_envs"], row["vectorization"]) for row in found["rows"] if row["steps_per_s"]}
    assert {(n, mode) for n in (1, 2) for mode in ("serial", "sync", "native", "tensor")} <= measured
    assert found["advice"]["environment"]["num_envs"] in (1, 2)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_the_answer_of_a_config_names_threads_too(algorithm: str) -> None:
    exp = load(
        [
            {
                "environment": {"id": "CartPole-v1", "num_envs": 2, "wrappers": ["normalize_observation"]},
                "learner": {"type": algorithm, "batch_size": 16, "n_steps": 16}
                if algorithm == "ppo"
                else {"type": "dqn", "batch_size": 16},
                "training": {"total_timesteps": 1000},
            }
        ]
    )
    before = torch.get_num_threads()
    found = runs.tune_sampling(exp, [2], 0.001)
    assert torch.get_num_threads() == before
    assert found.advice.training["threads"] in {row.threads for row in found.threads}
    assert found.advice.environment["num_envs"] == 2


def test_a_config_of_an_environment_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "env.yaml"
    path.write_text("environment: {id: CartPole-v1, num_envs: 3, wrappers: [normalize_observation]}\n")
    assert invoke(["tune-sampling", str(path), "--envs", "3", "--seconds", "0.01", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["threads"] == [] and found["advice"]["environment"]["num_envs"] == 3
    assert invoke(["tune-sampling", str(path), "learner.gamma=0.9"]) == 2
    assert "no algorithm is named" in capsys.readouterr().err


def test_an_unknown_environment_and_odd_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["tune-sampling", "CartPol-v1"]) == 2
    assert "CartPole" in capsys.readouterr().err
    assert invoke(["tune-sampling", "CartPole-v1", "--envs", "0,x"]) == 2
    assert "--envs 0,x" in capsys.readouterr().err
