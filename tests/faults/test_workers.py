"""Workers that raise, abort, are killed or hang: told in full, replaced where the config says so, never left over."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import uniarena
from tests.fakes.envs import CounterEnv
from tests.faults.fragile import WAYS, WORDS, Fragile
from uniarena import Agent, Trainer, checkpoint
from uniarena.envs import WorkerEnvs, WorkerError, WorkersConfig, make_env, worker_link
from uniarena.ops.returns import gae, known_successors, trace_ends
from uniarena.trainer.events import BatchCollected

PPO = {"type": "ppo", "n_steps": 8, "batch_size": 16, "n_epochs": 1}
DQN = {"type": "dqn", "learning_starts": 8, "train_every_env_steps": 2, "batch_size": 8, "n_step": 3}
RESTART: dict[str, Any] = {"on_fault": "restart", "timeout_s": 60.0, "restarts": 2}
each_way = pytest.mark.parametrize("how", WAYS)


@pytest.fixture(autouse=True)
def nobody_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process is left by any test here; what hangs is not waited for as long as users' environments are."""
    monkeypatch.setattr(worker_link, "GRACE_S", 0.3)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [c for c in psutil.Process().children(recursive=True) if c.pid not in before]
    left = [c for c in left if c.name() != "resource_tracker" and "forkserver" not in " ".join(c.cmdline())]
    assert not left


def patience(how: str) -> float:
    """Seconds: few where something hangs, which is waited for, and many where a busy machine must not count as that."""
    return 1.0 if how == "hangs" else 60.0


def restart(how: str) -> WorkersConfig:
    """The rule for tests of one way to fail."""
    return WorkersConfig(**{**RESTART, "timeout_s": patience(how)})


def zeros(env: Any) -> np.ndarray:
    return np.zeros(env.num_envs, np.int64)


def beside_a_counter(tmp_path: Path, how: str, once: bool = True, **options: Any) -> list[Any]:
    """Makers: column 0 counts, column 1 is fragile."""
    marker = str(tmp_path / "failed") if once else None
    return [lambda: CounterEnv(100), lambda: Fragile(how, marker, **options)]


# -- steps ----------------------------------------------------------------------------------------------------------
@each_way
def test_a_fault_in_a_step_costs_that_step_and_the_episode(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = make_env(beside_a_counter(tmp_path, how), vectorization=restart(how))
    env.reset(seed=5)
    seed = env.get_attr("seeds")[1][-1]
    for _ in range(3):
        assert env.step(zeros(env)).lost is None
    with caplog.at_level(logging.WARNING):
        step = env.step(np.array([0, 1]))
    assert step.valid.tolist() == [True, False] and step.lost.tolist() == [False, True]
    assert step.is_first.tolist() == [False, True] and step.final is None
    assert step.obs.tolist() == [[4.0], [0.0]] and step.reward.tolist() == [1.0, 0.0]
    assert not step.terminated.any() and not step.truncated.any()
    assert step.info["worker_restarts"].tolist()[1] == 1.0 and np.isnan(step.info["worker_restarts"][0])
    (told,) = (record.getMessage() for record in caplog.records)
    assert "environment 1" in told and WORDS[how] in told and "in step()" in told
    assert "last action: 1" in told and f"seed: {seed}, given 4 steps before" in told
    if how != "killed":  # nobody can say where that happened
        assert "fragile.py" in told and "in fail" in told
    after = env.step(zeros(env))
    assert after.valid is None and after.lost is None and after.info == {}
    assert after.obs.tolist() == [[5.0], [1.0]]
    assert env.get_attr("seeds")[1] != [seed]
    env.close()


@each_way
def test_by_default_a_fault_is_an_error_that_tells_it(how: str, tmp_path: Path) -> None:
    env = make_env(
        beside_a_counter(tmp_path, how, once=False), vectorization=WorkersConfig(timeout_s=patience(how))
    )
    env.reset(seed=5)
    with pytest.raises(WorkerError) as told:
        for _ in range(4):
            env.step(zeros(env))
    text = str(told.value)
    assert "(environment 1)" in text and WORDS[how] in text and "last action: 0" in text and "seed: " in text
    assert env.state_dict() is None
    with pytest.raises(WorkerError, match="make the environment anew"):
        env.step(zeros(env))
    env.close()


def test_what_columns_of_the_same_process_had_done_by_then_counts(tmp_path: Path) -> None:
    marker = str(tmp_path / "failed")
    makes = [
        lambda: CounterEnv(9),
        lambda: CounterEnv(4),
        lambda: Fragile("killed", marker),
        lambda: CounterEnv(9),
    ]
    env = make_env(makes, vectorization=WorkersConfig(processes=1, **RESTART))
    env.reset(seed=0)
    for _ in range(3):
        env.step(zeros(env))
    step = env.step(zeros(env))
    # 0 stepped and was cut; 1 ended in that step, as it would have; 2 failed; 3 had not been stepped
    assert step.valid.tolist() == [True, True, False, False]
    assert step.lost.tolist() == [True, False, True, True]
    assert step.reward.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert step.terminated.tolist() == [False, True, False, False]
    assert step.truncated.tolist() == [True, False, False, False]
    assert step.final.index.tolist() == [0, 1] and step.final.obs.tolist() == [[4.0], [4.0]]
    assert step.is_first.all() and step.obs.tolist() == [[0.0]] * 4
    env.close()


@each_way
def test_the_end_of_an_episode_outlives_a_reset_that_fails(how: str, tmp_path: Path) -> None:
    makes = beside_a_counter(tmp_path, how, call="reset", at=2, length=3)
    env = make_env(makes, vectorization=restart(how))
    env.reset(seed=0)
    for _ in range(2):
        env.step(zeros(env))
    step = env.step(zeros(env))
    assert step.valid is None and step.lost is None
    assert step.terminated.tolist() == [False, True] and step.reward.tolist() == [1.0, 1.0]
    assert step.final.index.tolist() == [1] and step.final.obs.tolist() == [[3.0]]
    assert step.obs.tolist() == [[3.0], [0.0]] and step.info["worker_restarts"][1] == 1
    env.close()


@pytest.mark.parametrize("rule", ["restart", "stop"])
def test_a_reset_that_always_fails_is_tried_so_often_and_no_more(rule: str, tmp_path: Path) -> None:
    makes = beside_a_counter(tmp_path, "raises", once=False, call="reset", at=1)
    env = make_env(makes, vectorization=WorkersConfig(on_fault=rule, restarts=2))  # type: ignore[arg-type]
    with pytest.raises(WorkerError, match=r"in reset\(\)") as told:
        env.reset(seed=0)
    assert ("2 of 2 within 10,000 steps" in str(told.value)) == (rule == "restart")
    env.close()


def test_a_constructor_that_fails_in_a_new_process_is_bounded_too(tmp_path: Path) -> None:
    parent, marker = os.getpid(), tmp_path / "began"

    def make() -> Fragile:
        if os.getpid() != parent and marker.exists():
            raise RuntimeError("no licence left")
        if os.getpid() != parent:
            marker.touch()
        return Fragile("killed")

    env = make_env(make, vectorization=WorkersConfig(**RESTART))
    env.reset(seed=0)
    with pytest.raises(WorkerError, match=r"no licence left(.|\n)*2 of 2"):
        for _ in range(4):
            env.step(zeros(env))
    env.close()


def test_what_never_ran_is_not_started_again() -> None:
    parent = os.getpid()

    def make() -> CounterEnv:
        if os.getpid() != parent:
            raise ModuleNotFoundError("No module named 'only_here'")
        return CounterEnv()

    with pytest.raises(WorkerError, match=r"only_here(.|\n)*Give the module that registers it"):
        make_env(make, vectorization=WorkersConfig(**RESTART))


def test_faults_are_counted_within_a_window() -> None:
    env = make_env(lambda: Fragile("raises", at=4), vectorization=WorkersConfig(**RESTART, restart_window=3))
    env.reset(seed=0)
    lost = [env.step(zeros(env)).lost is not None for _ in range(40)]
    assert sum(lost) == 10  # more than the two that a window of 40 steps would allow
    env.close()


# -- between steps --------------------------------------------------------------------------------------------------
def test_a_fault_between_steps_is_told_by_the_next_step() -> None:
    env = make_env(CounterEnv, 3, kwargs={"length": 9}, vectorization=WorkersConfig(processes=2, **RESTART))
    assert isinstance(env, WorkerEnvs)
    env.reset(seed=0)
    env.set_attr("difficulty", 3)
    env.step(zeros(env))
    os.kill(env.pids[0], signal.SIGKILL)
    assert env.get_attr("difficulty") == [3, 3, 3]  # set again in the new process
    state = env.state_dict()
    assert state is not None and state["obs"].tolist() == [[1.0]] * 3  # nobody saw another observation yet
    for one in (env, make_env(CounterEnv, 3, kwargs={"length": 9}, vectorization=env.cfg)):
        one.load_state_dict(state)
        step = one.step(zeros(env))
        assert step.lost.tolist() == [True, True, False] and step.valid.tolist() == [False, False, True]
        assert step.obs.tolist() == [[0.0], [0.0], [2.0]] and step.is_first.tolist() == [True, True, False]
        step = one.step(zeros(env))
        assert step.lost is None and step.obs.tolist() == [[1.0], [1.0], [3.0]]
        one.close()


def test_a_fault_in_a_partial_reset_breaks_off_the_others(tmp_path: Path) -> None:
    makes = beside_a_counter(tmp_path, "raises", call="reset", at=2)
    env = make_env(makes, vectorization=WorkersConfig(processes=1, **RESTART))
    env.reset(seed=0)
    env.step(zeros(env))
    assert env.reset(mask=np.array([False, True])).tolist() == [[1.0], [0.0]]
    step = env.step(zeros(env))
    assert (
        step.lost.tolist() == [True, True] and not step.valid.any() and step.info["worker_restarts"][0] == 1
    )
    assert env.step(zeros(env)).obs.tolist() == [[1.0], [1.0]]
    env.close()


def test_new_seeds_repeat(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        env = make_env(lambda: Fragile("raises", at=3), vectorization=WorkersConfig(**RESTART))
        env.reset(seed=11)
        for _ in range(4):
            env.step(zeros(env))
        found.append(env.get_attr("seeds"))
        env.close()
    assert found[0] == found[1] and found[0][0][0] is not None


def test_an_error_of_an_attribute_is_the_users_and_costs_no_worker() -> None:
    env = make_env(CounterEnv, 2, vectorization="async")
    assert isinstance(env, WorkerEnvs)
    env.reset(seed=0)
    before = env.pids
    with pytest.raises(AttributeError, match="gravity"):
        env.get_attr("gravity")
    with pytest.raises(TypeError):
        env.call("double")
    assert env.step(zeros(env)).obs.tolist() == [[1.0], [1.0]] and env.pids == before
    env.close()


# -- training -------------------------------------------------------------------------------------------------------
class Watch:
    """Keeps what was counted, and the episodes that were reported."""

    def __init__(self) -> None:
        self.episodes: list[tuple[float, int]] = []
        self.valid = self.lost = 0

    def on_batch_collected(self, trainer: Trainer, event: BatchCollected) -> None:
        self.episodes += [(e.episode_return, e.length) for e in event.episodes]
        self.valid += int(event.rollout.rows.valid.sum())
        self.lost += 0 if event.rollout.lost is None else len(event.rollout.lost.t)


@each_way
@pytest.mark.parametrize("learner", [PPO, DQN], ids=["ppo", "dqn"])
def test_training_goes_on_and_counts_only_what_happened(
    learner: dict[str, Any], how: str, tmp_path: Path
) -> None:
    makes = beside_a_counter(tmp_path, how, at=6, length=8)
    env = make_env(makes, vectorization=restart(how))
    watch = Watch()
    trainer = Trainer(Agent.assemble(env, learner, policy={"hidden_sizes": [8]}), env, callbacks=[watch])
    trainer.fit(64)
    trainer.close()
    counters = trainer.counters
    assert watch.lost == 1 and counters.worker_restarts == 1
    assert counters.env_steps == watch.valid >= 64 and counters.steps == counters.env_steps + 1
    # column 1 broke off after five steps; what it began again lasts as long as it should
    assert set(watch.episodes) <= {(8.0, 8), (100.0, 100)} and counters.episodes == len(watch.episodes)
    if learner is DQN:
        batch = trainer.agent.buffer.sample(torch.Generator(), size=512)
        # no transition leads out of one life into another, over however many steps
        assert (batch.next_obs == batch.obs + batch.n[:, None]).all() and (batch.reward > 0).all()
        assert trainer.agent.buffer.size == counters.env_steps


def test_a_lost_row_has_no_advantage_and_the_one_before_is_bootstrapped(tmp_path: Path) -> None:
    env = make_env(beside_a_counter(tmp_path, "raises", at=3), vectorization=WorkersConfig(**RESTART))
    agent = Agent.assemble(env, PPO, policy={"hidden_sizes": [8]})
    trainer = Trainer(agent, env)
    trainer.sampler.publish(agent.actor, 0)
    rollout = trainer.sampler.collect(8)
    trainer.close()
    rows, known = rollout.rows, known_successors(rollout)
    assert rollout.lost is not None and rollout.lost.t.tolist() == [2] and rollout.lost.b.tolist() == [1]
    assert known is not None and known.tolist() == [[True, True], [True, True], [True, False], [True, True]]
    value = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    following = torch.tensor([[3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 10.0]])
    advantage, target = gae(
        rows.reward, value, following, torch.full((4, 2), 0.5), trace_ends(rows), 0.5, known=known
    )
    # by hand, column 1: δ = 1 + 4/2 − 2 = 1, 1 + 6/2 − 4 = 0, lost 0, 1 + 10/2 − 8 = −2; λγ = 1/4; cut after that row
    assert advantage[:, 1].tolist() == [1.0, 0.0, 0.0, -2.0]
    assert target[2, 1] == 6.0


@pytest.mark.parametrize("learner", [PPO, DQN], ids=["ppo", "dqn"])
@pytest.mark.parametrize("how", ["killed", "hangs"])
def test_a_run_that_stops_has_a_checkpoint_to_go_on_from(
    how: str, learner: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = {
        "environment": {
            "id": "tests.faults.fragile:Fragile",
            "num_envs": 2,
            "kwargs": {"how": how, "marker": str(tmp_path / "failed"), "at": 21, "length": 8},
            "vectorization": "async",
            "workers": {"timeout_s": patience(how)},
        },
        "learner": learner,
        "agent": {"policy": {"hidden_sizes": [8]}},
        "training": {"total_timesteps": 64, "save_every_env_steps": 64, "eval_every_env_steps": 64},
        "callbacks": [{"type": "evaluate", "at_end": False}],
    }
    run = tmp_path / "run"
    with pytest.raises(WorkerError, match=WORDS[how]) as told:
        uniarena.train(config, run_dir=run, quiet=True)
    assert any("uniarena resume" in note for note in told.value.__notes__)
    folder, _ = checkpoint.newest(run / "checkpoints")
    meta = checkpoint.read_meta(folder)
    whole = 32 if learner is PPO else 40  # two rollouts; twenty rounds
    assert (meta["kind"], meta["exact"], meta["counters"]["env_steps"]) == ("fault", False, whole)
    assert capfd.readouterr().err == ""
    assert uniarena.resume(run, quiet=True).env_steps == 64


def test_the_restarts_are_a_figure_of_the_log(tmp_path: Path) -> None:
    config = {
        "environment": {
            "id": Fragile,
            "num_envs": 2,
            "kwargs": {"how": "raises", "marker": str(tmp_path / "failed"), "at": 5},
            "vectorization": "async",
            "workers": {"on_fault": "restart"},
        },
        "learner": PPO,
        "training": {"total_timesteps": 32, "n_eval_episodes": 1},
        "callbacks": [{"type": "evaluate", "at_end": False}],
    }
    uniarena.train(config, run_dir=tmp_path / "run", quiet=True)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert all('"worker_restarts": 1' in line for line in lines[-1:])
    assert "It is started again: 1 of 5" in (tmp_path / "run" / "run.log").read_text(encoding="utf-8")


# -- the parent -----------------------------------------------------------------------------------------------------
def test_ctrl_c_while_a_worker_hangs_leaves_nobody() -> None:
    env = make_env(lambda: Fragile("hangs", at=1), vectorization=WorkersConfig(timeout_s=None))
    env.reset(seed=0)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        env.step(zeros(env))
    env.close()
    assert not multiprocessing.active_children()


def test_what_is_not_closed_is_closed_when_it_is_forgotten() -> None:
    env = make_env(CounterEnv, 2, vectorization="async")
    assert isinstance(env, WorkerEnvs)
    processes = [psutil.Process(pid) for pid in env.pids]
    del env
    assert not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_workers_leave_signals_that_stop_a_run_to_the_parent(name: str) -> None:
    env = make_env(CounterEnv, 1, vectorization="async")
    assert isinstance(env, WorkerEnvs)
    env.reset()
    os.kill(env.pids[0], getattr(signal, name))
    assert env.step(zeros(env)).obs.tolist() == [[1.0]]
    env.close()


def _orphans(busy: bool, pipe: Any) -> None:
    env = make_env(lambda: Fragile("hangs", at=1), 3, vectorization=WorkersConfig(timeout_s=None))
    assert isinstance(env, WorkerEnvs)
    env.reset(seed=0)
    pipe.send(env.pids)
    if busy:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
        env.step(zeros(env))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    "busy", [False, pytest.param(True, marks=pytest.mark.skipif(sys.platform != "linux", reason="by prctl"))]
)
def test_workers_end_by_themselves_where_the_parent_is_killed(busy: bool) -> None:
    here, there = multiprocessing.Pipe()
    parent = multiprocessing.get_context("fork").Process(target=_orphans, args=(busy, there))
    parent.start()
    processes = [psutil.Process(pid) for pid in here.recv()]
    parent.join()
    assert parent.exitcode == -signal.SIGKILL
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


# -- start methods --------------------------------------------------------------------------------------------------
UNGUARDED = """
import multiprocessing
multiprocessing.set_start_method("{method}", force=True)
from tests.fakes.envs import CounterEnv
from uniarena.envs import make_env
env = make_env(CounterEnv, 2, vectorization="async")
"""
OPEN = """
import multiprocessing, threading
from tests.fakes.envs import CounterEnv
from uniarena.envs import make_env
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    env = CounterEnv()
    env.lock = threading.Lock()
    make_env(env, vectorization="async")
"""


def _script(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(text, encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or "." for entry in sys.path)}
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environ, timeout=120, check=False
    )


@pytest.mark.slow  # several processes import torch
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_without_main_guard_is_told_so(method: str, tmp_path: Path) -> None:  # case B64
    done = _script(tmp_path, UNGUARDED.format(method=method))
    assert done.returncode == 1
    assert 'if __name__ == "__main__":' in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_what_cannot_be_sent_to_a_spawned_worker_is_named(tmp_path: Path) -> None:  # case B64
    done = _script(tmp_path, OPEN)
    assert "CounterEnv cannot be sent to a worker process" in done.stderr.splitlines()[-1]
    assert "lock" in done.stderr.splitlines()[-1]


def test_a_fault_at_the_first_step_says_that_nothing_was_learned(tmp_path: Path) -> None:
    fragile = {"how": "raises", "marker": str(tmp_path / "failed"), "at": 1}
    config = {
        "environment": {
            "id": "tests.faults.fragile:Fragile",
            "num_envs": 2,
            "kwargs": fragile,
            "vectorization": "async",
        },
        "learner": {"type": "ppo", "n_steps": 8, "batch_size": 16},
        "agent": {"policy": {"hidden_sizes": [8]}},
        "training": {"total_timesteps": 64},
    }
    with pytest.raises(WorkerError) as told:
        uniarena.train(config, run_dir=tmp_path / "run", quiet=True)
    notes = " ".join(told.value.__notes__)
    assert "stopped at 0 env steps, and nothing was learned yet" in notes and "To continue" not in notes
