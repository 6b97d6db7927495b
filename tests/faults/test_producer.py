"""A producer that raises, is killed or hangs; a trainer that is killed or interrupted: all told, nothing left over."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import uniarena
from tests.fakes.envs import CounterEnv
from tests.faults.fragile import WAYS, WORDS, Fragile
from tests.resume.runs import INTERRUPTED, differences, resume, train
from uniarena import Agent, Trainer, checkpoint
from uniarena.config import SamplingConfig
from uniarena.envs import WorkersConfig, make_env, worker_link
from uniarena.optim import NonFiniteError
from uniarena.sampling import PipelinedSampler, ProducerError

PPO = {"type": "ppo", "n_steps": 8, "batch_size": 16, "n_epochs": 1}
DQN = {"type": "dqn", "learning_starts": 8, "train_every_env_steps": 2, "batch_size": 8, "n_step": 3}
each_way = pytest.mark.parametrize("how", WAYS)


def descendants() -> set[int]:
    """Processes below this one, those of multiprocessing apart."""
    found = {child.pid: " ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)}
    return {
        pid
        for pid, command in found.items()
        if "multiprocessing.forkserver" not in command and "multiprocessing.resource_tracker" not in command
    }


def mapped() -> int:
    """Blocks of shared memory that this process maps."""
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:uniarena")


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process, open file or memory is left by any test here."""
    monkeypatch.setattr(worker_link, "GRACE_S", 0.3)
    before, files = descendants(), set(os.listdir("/dev/shm"))
    yield
    assert descendants() <= before and set(os.listdir("/dev/shm")) <= files


def sampling(how: str) -> SamplingConfig:
    """Little patience where something hangs, much where a busy machine must not count as that."""
    return SamplingConfig(type="pipelined", timeout_s=1.0 if how == "hangs" else 60.0)


def trainer_of(spec: Any, cfg: SamplingConfig, vectorization: Any = "auto", **learner: Any) -> Trainer:
    env = make_env(spec, 2, vectorization=vectorization)
    agent = Agent.assemble(env, {**PPO, **learner}, policy={"hidden_sizes": [4]})
    return Trainer(agent, env, sampling=cfg)


class Speechless(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise TypeError("no text")


class StepsWithoutWords(CounterEnv):
    def step(self, action: Any) -> Any:
        raise Speechless


@pytest.mark.parametrize("vectorization", ["auto", "async"])
def test_an_error_whose_text_cannot_be_had_is_told_by_its_type(
    vectorization: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if vectorization == "async":
        vectorization = WorkersConfig(timeout_s=60.0)  # type: ignore[assignment]
    trainer = trainer_of(StepsWithoutWords, sampling("raises"), vectorization)
    with pytest.raises(ProducerError) as told:
        trainer.fit(100)
    said = "raised Speechless: (its text cannot be had: __str__ raised TypeError)"
    assert said in str(told.value) and "StepsWithoutWords" in str(told.value)
    assert "Traceback" not in capfd.readouterr().err
    trainer.close()


# -- the producer -----------------------------------------------------------------------------------------------------
@each_way
def test_a_fault_of_the_producer_is_an_error_that_tells_it(how: str) -> None:
    trainer = trainer_of(lambda: Fragile(how, at=12), sampling(how))
    with pytest.raises(ProducerError) as told:
        trainer.fit(100)
    text = str(told.value)
    assert "the producer process of" in text and WORDS[how] in text and "in collect()" in text
    assert "sampling.type=local" in text
    if how != "killed":  # nobody can say where that happened
        assert "fragile.py" in text and "in fail" in text
    assert trainer.counters.env_steps == 16  # the chunk before was whole
    with pytest.raises(ProducerError, match="make the trainer anew"):
        trainer.fit(100)
    trainer.close()


@each_way
@pytest.mark.parametrize("lag", [1, "free"])
def test_of_several_the_one_that_fails_is_told_at_once(how: str, lag: Any) -> None:
    """The other one is in a step that takes for ever where it does not matter, and ends with the sampler."""

    class Patient(CounterEnv):
        def step(self, action: int) -> Any:
            if how != "hangs" and self.t == 10:
                threading.Event().wait()
            return super().step(action)

    env = make_env([lambda: Patient(100), lambda: Fragile(how, at=12)])
    cfg = SamplingConfig(type="pipelined", lag=lag, producers=2, timeout_s=sampling(how).timeout_s)
    trainer = Trainer(Agent.assemble(env, PPO, policy={"hidden_sizes": [4]}), env, sampling=cfg)
    pids = trainer.sampler.pids  # type: ignore[union-attr]
    with pytest.raises(ProducerError) as told:
        trainer.fit(100)
    text = str(told.value)
    assert "producer process 1 (environment 1 of" in text
    assert WORDS[how] in text and "in collect()" in text and len(pids) == 2
    assert trainer.sampler.state_dict()["chunks"] == []
    with pytest.raises(ProducerError, match="make the trainer anew"):
        trainer.fit(100)
    trainer.close()


def test_a_slow_producer_is_not_one_that_hangs() -> None:
    """It takes steps; only together they take longer than the limit."""

    class Slow(CounterEnv):
        def step(self, action: int) -> Any:
            threading.Event().wait(0.05)
            return super().step(action)

    trainer = trainer_of(Slow, SamplingConfig(type="pipelined", timeout_s=0.5))
    trainer.fit(32)
    assert trainer.counters.env_steps == 32
    trainer.close()


@pytest.mark.parametrize(("at", "call"), [(2, "reset"), (2, "step")])
def test_the_first_reset_and_the_first_chunk_fail_as_well(at: int, call: str) -> None:
    with pytest.raises(ProducerError, match="KeyError"):
        trainer = trainer_of(lambda: Fragile("raises", at=at, call=call), sampling("raises"))
        try:
            trainer.fit(16)
        finally:
            trainer.close()


def test_a_worker_of_the_producer_is_started_again(tmp_path: Path) -> None:
    marker = str(tmp_path / "failed")
    trainer = trainer_of(
        lambda: Fragile("killed", marker, at=12), sampling("killed"), WorkersConfig(on_fault="restart")
    )
    trainer.fit(64)
    assert trainer.counters.worker_restarts == 1 and trainer.counters.env_steps >= 64
    trainer.close()


@pytest.mark.parametrize(
    ("learner", "producers"), [(PPO, 1), (DQN, 1), (PPO, 2)], ids=["ppo", "dqn", "ppo, two producers"]
)
@pytest.mark.parametrize("how", ["raises", "killed", "hangs"])
def test_a_run_that_stops_has_a_checkpoint_to_go_on_from(
    how: str, learner: dict[str, Any], producers: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = {
        "environment": {
            "id": "tests.faults.fragile:Fragile",
            "num_envs": 2,
            "kwargs": {"how": how, "marker": str(tmp_path / "failed"), "at": 21, "length": 8},
        },
        "learner": learner,
        "agent": {"policy": {"hidden_sizes": [8]}},
        "sampling": {"type": "pipelined", "timeout_s": sampling(how).timeout_s, "producers": producers},
        "training": {"total_timesteps": 64, "save_every_env_steps": 64, "eval_every_env_steps": 64},
        "callbacks": [{"type": "evaluate", "at_end": False}],
    }
    run = tmp_path / "run"
    with pytest.raises(ProducerError, match=WORDS[how]) as told:
        uniarena.train(config, run_dir=run, quiet=True)
    assert any("uniarena resume" in note for note in told.value.__notes__)
    folder, _ = checkpoint.newest(run / "checkpoints")
    meta = checkpoint.read_meta(folder)
    whole = 32 if learner is PPO else 40  # two rollouts; twenty rounds
    assert (meta["kind"], meta["exact"], meta["counters"]["env_steps"]) == ("fault", False, whole)
    assert capfd.readouterr().err == ""
    assert uniarena.resume(run, quiet=True).env_steps == 64


def test_a_bad_number_stops_the_run_at_its_last_good_state(tmp_path: Path) -> None:
    config = {
        "environment": {
            "id": "tests.faults.broken:Echo",
            "kwargs": {"where": "reward", "at": 40},
            "num_envs": 2,
        },
        "learner": PPO,
        "agent": {"policy": {"hidden_sizes": [8]}},
        "sampling": "pipelined",
        "training": {"total_timesteps": 96, "save_every_env_steps": 96, "n_eval_episodes": 1},
        "callbacks": [{"type": "evaluate", "at_end": False}],
    }
    run = tmp_path / "run"
    with pytest.raises(NonFiniteError, match="reward of environment 0 was nan, at step 7"):
        uniarena.train(config, run_dir=run, quiet=True)
    folder, _ = checkpoint.newest(run / "checkpoints")
    assert checkpoint.read_meta(folder)["counters"]["env_steps"] == 64
    assert uniarena.resume(run, quiet=True).env_steps == 96


# -- the trainer ------------------------------------------------------------------------------------------------------
def test_what_is_not_closed_is_closed_when_it_is_forgotten() -> None:
    gc.collect()
    before = mapped()
    trainer = trainer_of(CounterEnv, sampling("killed"))
    trainer.fit(32)
    assert isinstance(trainer.sampler, PipelinedSampler) and mapped() > before
    process = psutil.Process(trainer.sampler.pids[0])
    del trainer
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert mapped() == before


@pytest.mark.parametrize("producers", [1, 2])
def test_memory_is_mapped_once_however_long_it_runs(producers: int) -> None:
    trainer = trainer_of(CounterEnv, SamplingConfig(type="pipelined", producers=producers), n_steps=4)
    trainer.fit(80)
    before, files = mapped(), len(os.listdir("/proc/self/fd"))
    trainer.fit(800)
    assert mapped() == before and len(os.listdir("/proc/self/fd")) == files
    trainer.close()


def test_ctrl_c_while_the_producer_hangs_leaves_nobody() -> None:
    trainer = trainer_of(lambda: Fragile("hangs", at=2), SamplingConfig(type="pipelined", timeout_s=None))
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(100)
    assert trainer.sampler.state_dict()["chunks"] == []
    trainer.close()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_the_producer_leaves_signals_that_stop_a_run_to_the_trainer(name: str) -> None:
    trainer = trainer_of(CounterEnv, sampling("killed"))
    trainer.fit(16)
    assert isinstance(trainer.sampler, PipelinedSampler)
    os.kill(trainer.sampler.pids[0], getattr(signal, name))
    trainer.fit(64)
    trainer.close()


def _orphan(pipe: Any, producers: int) -> None:
    cfg = SamplingConfig(type="pipelined", timeout_s=None, producers=producers)
    trainer = trainer_of(lambda: Fragile("hangs", at=2), cfg, "async")
    pipe.send([child.pid for child in psutil.Process().children(recursive=True)])
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    trainer.fit(100)


@pytest.mark.skipif(sys.platform != "linux", reason="by prctl")
@pytest.mark.parametrize("producers", [1, 2])
def test_producers_and_their_workers_end_where_the_trainer_is_killed(producers: int) -> None:
    here, there = multiprocessing.Pipe()
    parent = multiprocessing.get_context("fork").Process(target=_orphan, args=(there, producers))
    parent.start()
    processes = [psutil.Process(pid) for pid in here.recv()]
    parent.join()
    assert parent.exitcode == -signal.SIGKILL and len(processes) == 2 + producers
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


RUN = {
    "experiment": {"seed": 3, "loggers": [{"type": "jsonl"}]},
    "environment": {"id": "CartPole-v1", "num_envs": 4},
    "learner": {**PPO, "n_steps": 16},
    "sampling": "pipelined",
    "training": {"total_timesteps": 512, "save_every_env_steps": 256, "n_eval_episodes": 1},
}


@pytest.mark.parametrize("disturb", ["INT@3", "TERM@5"])
def test_an_interrupted_run_goes_on_bit_for_bit(disturb: str, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train(RUN, whole) == 0
    assert train(RUN, cut, disturb) == INTERRUPTED
    assert resume(cut) == 0
    assert differences(whole, cut) == []


# -- start methods ----------------------------------------------------------------------------------------------------
SCRIPT = """
import multiprocessing, sys
import uniarena
from uniarena.config import SamplingConfig

class Env(uniarena.make_env.__globals__["gym"].Env):
    def __init__(self):
        from gymnasium import spaces
        self.observation_space, self.action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(2, "float32"), {}
    def step(self, action):
        return self.np_random.random(2, "float32"), float(action), False, bool(self.np_random.random() < 0.1), {}

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    env = uniarena.make_env(Env, 2)
    agent = uniarena.Agent.assemble(env, {"type": "ppo", "n_steps": 16, "n_epochs": 1})
    trainer = uniarena.Trainer(agent, env, sampling=SamplingConfig(type="pipelined"))
    trainer.fit(128)
    trainer.close()
    print(sum(p.double().sum().item() for p in agent.model.parameters()))
"""


@pytest.mark.slow
def test_every_start_method_gives_the_same_run(tmp_path: Path) -> None:
    """The environment is a class of the script itself."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    path = os.pathsep.join(entry or "." for entry in sys.path)
    found = set()
    for method in ("fork", "spawn", "forkserver"):
        done = subprocess.run(
            [sys.executable, str(script), method],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1
