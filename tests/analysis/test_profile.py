"""Where a run's time goes: by a clock that the tests move, and without changing what the run computes."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Env, spaces

from tests.cli.conftest import SMALL
from uniarena import Agent, Trainer, make_env
from uniarena import run as runs
from uniarena.analysis import profile as profiling
from uniarena.analysis.plots import draw
from uniarena.analysis.profile import Profile, Side, Watch
from uniarena.analysis.rates import Rate
from uniarena.analysis.stopwatch import Stopwatch
from uniarena.cli import invoke
from uniarena.config import load


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Work:
    """Methods that take a known time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def outer(self, value: int) -> int:
        self.clock.now += 1.0
        inner = self.inner()
        self.clock.now += 2.0
        return value + inner

    def inner(self) -> int:
        self.clock.now += 4.0
        return 7

    def fails(self) -> None:
        self.clock.now += 8.0
        raise KeyError("x")


def test_time_inside_is_the_inner_ones_own() -> None:
    clock = Clock()
    work, stopwatch = Work(clock), Stopwatch(clock)
    stopwatch.watch(work, "outer", "a")
    stopwatch.watch(work, "inner", "b")
    assert work.outer(1) == 8 and stopwatch.seconds == {}  # not started
    stopwatch.start()
    clock.now += 0.5
    assert work.outer(1) == 8
    stopwatch.stop()
    assert work.outer(1) == 8
    assert stopwatch.seconds == {"a": 3.0, "b": 4.0, "other": 0.5}
    assert stopwatch.calls == {"a": 1, "b": 1} and stopwatch.total == 7.5


def test_a_whole_phase_takes_what_is_inside() -> None:
    clock = Clock()
    work, stopwatch = Work(clock), Stopwatch(clock)
    stopwatch.watch(work, "outer", "a", whole=True)
    stopwatch.watch(work, "inner", "b")
    stopwatch.start()
    work.outer(0)
    work.inner()
    stopwatch.stop()
    assert stopwatch.seconds == {"a": 7.0, "b": 4.0, "other": 0.0}


def test_errors_pass_and_their_time_is_counted() -> None:
    clock = Clock()
    work, stopwatch = Work(clock), Stopwatch(clock)
    stopwatch.watch(work, "fails", "a")
    stopwatch.start()
    with pytest.raises(KeyError):
        work.fails()
    clock.now += 1.0
    stopwatch.stop()
    assert stopwatch.seconds == {"a": 8.0, "other": 1.0}


def test_nothing_is_left_behind() -> None:
    work, stopwatch = Work(Clock()), Stopwatch()
    work.own = lambda: 1  # type: ignore[attr-defined]
    before, cls = dict(vars(work)), dict(vars(Work))
    for name in ("outer", "own"):
        assert stopwatch.watch(work, name, "a")
    assert stopwatch.watch(Work, "inner", "b") and work.inner() == 7
    assert not stopwatch.watch(work, "absent", "a") and not stopwatch.watch((), "count", "a")
    stopwatch.remove()
    assert vars(work) == before and dict(vars(Work)) == cls


def test_the_price_of_a_call_is_measured() -> None:
    class Ticking(Clock):
        def __call__(self) -> float:
            self.now += 1e-6
            return self.now

    assert Stopwatch(Ticking()).price() == pytest.approx(2e-6, rel=0.01)  # it reads the clock twice


def _trainer(callbacks: Any = (), kind: str = "ppo") -> Trainer:
    env = make_env("CartPole-v1", 2)
    learner: dict[str, Any] = {"type": "ppo", "n_steps": 8, "batch_size": 8, "n_epochs": 2}
    if kind == "dqn":
        learner = {"type": "dqn", "batch_size": 8, "learning_starts": 20, "train_every_env_steps": 4}
    return Trainer(Agent.assemble(env, learner), env, callbacks=list(callbacks))


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_a_profiled_run_computes_the_same_and_is_left_as_it_was(kind: str) -> None:
    class StopAt:
        def on_iteration_end(self, trainer: Any, event: Any) -> None:
            if trainer.counters.env_steps >= watched.counters.env_steps:
                trainer.request_stop("interrupted")

    watch = Watch(10)
    watched, plain = _trainer([watch], kind), _trainer([StopAt()], kind)
    backward = torch.Tensor.backward
    watched.fit(5_000)
    plain.fit(5_000)  # schedules go by the same length
    assert watched.stop_reason == "interrupted" and watched.counters == plain.counters
    pairs = zip(watched.agent.model.parameters(), plain.agent.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.Tensor.backward is backward
    parts = (watched.sampler, watched.sampler.env, watched.agent, watched.agent.actor, watched.guard)  # type: ignore[attr-defined]
    for part in (*parts, watched.agent.learner, watched.agent.buffer, watched):
        assert not any("timed" in getattr(value, "__qualname__", "") for value in vars(part).values())
    phases = {"env step", "act", "sampler", "store", "update", "optimizer", "books", "other"}
    assert phases | ({"annotate", "targets"} if kind == "ppo" else set()) <= watch.stopwatch.seconds.keys()
    assert watch.steps >= 10 and watch.used["main thread"] >= 0.0


class Slow(Env):
    """An environment whose step takes a second of the test's clock."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    clock = Clock()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.clock.now += 1.0
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_what_takes_the_time_is_found() -> None:
    class Writes:
        def on_iteration_end(self, trainer: Any, event: Any) -> None:
            Slow.clock.now += 16.0

    env = make_env(Slow, 2)
    watch = Watch(32, Slow.clock)
    learner = {"type": "ppo", "n_steps": 8, "batch_size": 8, "n_epochs": 1}
    Trainer(Agent.assemble(env, learner), env, callbacks=[Writes(), watch]).fit(1000)
    seconds = {phase: value for phase, value in watch.stopwatch.seconds.items() if value}
    assert watch.steps == 32 and seconds == {"env step": 32.0, "callbacks": 32.0}


def test_rare_things_count_as_often_as_the_config_says() -> None:
    watch = Watch(100)
    watch.steps = 200
    watch.stopwatch.seconds = {"update": 3.0, "evaluation": 50.0, "checkpoint": 50.0, "env step": 1.0}
    found = profiling.in_proportion(watch, {"evaluation": (4.0, 1000), "checkpoint": (5.0, None)})
    assert found == {"env step": 1.0, "update": 3.0, "evaluation": 0.8}
    assert list(found) == ["env step", "update", "evaluation"]


def test_waiting_is_told_apart_from_taking_over() -> None:
    watch = Watch(100)
    watch.steps, watch.told = 200, {"waited": 1.5, "collecting": 3.0, "idle": 1.0}
    watch.stopwatch.seconds = {"waiting": 2.0, "update": 2.0}
    assert profiling.in_proportion(watch, {}) == {"sampler": 0.5, "waiting": 1.5, "update": 2.0}


def test_a_sampler_elsewhere_is_waited_for() -> None:
    clock = Clock()
    watch = Watch(16, clock)
    trainer = _trainer([watch])
    local = trainer.sampler

    class Elsewhere:
        seconds = {"waited": 0.0}  # noqa: RUF012
        pid = None

        def collect(self, *args: Any, **kwargs: Any) -> Any:
            clock.now += 3.0
            self.seconds["waited"] += 2.0
            return local.collect(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            return getattr(local, name)

    trainer.sampler = Elsewhere()  # type: ignore[assignment]
    trainer.fit(1000)
    assert watch.stopwatch.seconds["waiting"] == 3.0 and "act" not in watch.stopwatch.seconds
    assert profiling.in_proportion(watch, {})["waiting"] == 2.0


def test_sides_are_told_busiest_first() -> None:
    used = {"main thread": 1.0, "process 5": 4.0, "process 6": 0.001, "other threads": 2.0}
    expected = (Side("process 5", 0.8), Side("other threads", 0.4), Side("main thread", 0.2))
    assert profiling.sides(used, 5.0) == expected


def test_floors_are_in_env_steps() -> None:
    assert profiling.floors(Rate(100, 2.0), Rate(4, 2.0), 128) == {"environments": 50.0, "updates": 256.0}


@pytest.mark.parametrize(
    ("seconds", "overlap", "said"),
    [
        ({"env step": 8.0, "update": 1.0}, False, "environment.vectorization=async"),
        ({"env step": 0.08, "update": 0.01}, False, "native or tensor"),
        ({"act": 6.0, "update": 1.0}, False, "Acting is 86%"),
        ({"update": 5.0, "backward": 4.0, "act": 1.0}, False, "Updates are 90%"),
        ({"evaluation": 6.0, "update": 1.0}, False, "training.eval_every_env_steps"),
        ({"waiting": 3.0, "update": 1.0}, False, "75% of the time is waiting"),
        ({"env step": 1.0, "update": 1.0, "evaluation": 1.0}, False, "No part"),
        (
            {"env step": 3.0, "update": 7.0},
            True,
            "pipelined overlaps them on two cores, which hides up to 30%",
        ),
        ({"env step": 1.0, "update": 9.0}, True, "Updates are 90%"),
    ],
)
def test_one_sentence_of_advice(seconds: dict[str, float], overlap: bool, said: str) -> None:
    found = Profile(1000, seconds, (), 1, {}, 0.0)
    assert said in profiling.advise(found, 8, overlap)
    assert sum(found.share(phase) for phase in seconds) == pytest.approx(1.0)


def test_the_command_on_a_config_and_on_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL, encoding="utf-8")
    monkeypatch.setattr(runs.profile, "__defaults__", (None, 0.001, None))
    assert invoke(["profile", "small.yaml", "training.threads=1", "--steps", "64", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["env_steps"] == 64 and sum(found["shares"].values()) == pytest.approx(1.0, abs=1e-3)
    assert {"evaluation", "checkpoint", "env step", "update"} <= found["shares"].keys()
    assert found["floors_steps_per_s"].keys() == {"environments", "updates"} and found["advice"]
    assert 0.0 <= found["overhead"] < 0.5
    written = json.loads(Path("profile.json").read_text(encoding="utf-8"))
    assert written == {key: value for key, value in found.items() if key not in ("file", "picture")}
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "profile.png") == [
        "profile.json",
        "small.yaml",
    ]
    assert invoke(["train", "small.yaml", "--run-dir", "run", "-q"]) == 0
    capfd.readouterr()
    assert invoke(["profile", "run", "--steps", "32"]) == 0
    text = capfd.readouterr().out
    assert (
        "env step" in text and "environments alone" in text and (tmp_path / "run" / "profile.json").exists()
    )
    assert invoke(["profile", "run", "odd"]) == 2


def test_what_would_end_the_run_does_not_end_its_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stops = (
        "callbacks: [{type: early_stop, metric: return_mean, threshold: 1}, {type: early_stop, threshold: 1}]"
    )
    Path("small.yaml").write_text(f"{SMALL}\n{stops}\n", encoding="utf-8")
    monkeypatch.setattr(runs.profile, "__defaults__", (None, 0.001, None))
    assert invoke(["profile", "small.yaml", "--steps", "64"]) == 0
    told = capfd.readouterr()
    assert "64 env steps at " in told.out and "never came up" not in told.err


def test_producers_are_told_apart_from_other_processes() -> None:
    waiting = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(3)]
    try:
        first, second, other = (process.pid for process in waiting)
        found = profiling.usage(SimpleNamespace(pids=[first, second]))
        assert {"producer 0", "producer 1", f"process {other}"} <= found.keys()
        assert "producer" in profiling.usage(SimpleNamespace(pids=[first]))
    finally:
        for process in waiting:
            process.communicate(b"\n")


@pytest.mark.extra("plot")
def test_the_picture_goes_where_it_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL, encoding="utf-8")
    monkeypatch.setattr(runs.profile, "__defaults__", (None, 0.001, None))
    two = ["environment.num_envs=2", "sampling.type=pipelined", "sampling.producers=2"]
    command = ["profile", "small.yaml", *two, "--steps", "64", "--to", "figures", "--plot", "docs/mine.png"]
    assert invoke(command) == 0
    assert Path("docs/mine.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in Path("figures").iterdir()] == ["profile.json"]
    found = json.loads(Path("figures/profile.json").read_text(encoding="utf-8"))
    assert found["producer"].keys() == {"collecting"} and found["shares"]["waiting"] > 0


def test_other_loggers_are_not_told_of_a_run_that_is_none(tmp_path: Path) -> None:
    from uniarena.run.profiling import _local

    exp = load(["ppo/cartpole"])
    assert [each["type"] for each in _local((*exp.experiment.loggers, {"type": "wandb"}))] == [
        each["type"] for each in exp.experiment.loggers
    ]


@pytest.mark.extra("plot")
def test_the_picture(tmp_path: Path) -> None:
    file = draw.shares(
        {"update": 0.7, "act": 0.3}, {"main thread": 0.99}, "1,000 env steps/s", tmp_path / "p.png"
    )
    assert file.read_bytes().startswith(b"\x89PNG")
