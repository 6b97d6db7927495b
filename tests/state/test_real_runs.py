"""What checkpoints, evaluation and logs promise, held against a real agent in training."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from uniarena import checkpoint
from uniarena.agent import Agent
from uniarena.envs import make_env
from uniarena.sampling.evaluation import evaluate_agent
from uniarena.seeding import seed_globals
from uniarena.trainer import Trainer
from uniarena.trainer.callbacks.checkpoint import Checkpoint
from uniarena.trainer.callbacks.evaluate import Evaluate
from uniarena.trainer.callbacks.log import Log

PPO = {"type": "ppo", "n_steps": 64, "n_epochs": 2, "batch_size": 64}


def make(num_envs: int = 2, seed: int | None = None) -> Any:
    return make_env(
        "Pendulum-v1", num_envs, seed=seed, wrappers=["normalize_observation"], max_episode_steps=50
    )


def trainer_with(folder: Path | None, *callbacks: Any) -> Trainer:
    seed_globals(0)
    env = make()
    agent = Agent.assemble(env, learner=PPO)
    return Trainer(agent, env, callbacks=callbacks, run_dir=folder, env_factory=make)


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return list(trainer.agent.model.state_dict().values())


def test_a_loaded_agent_needs_no_other_file_than_its_checkpoint(tmp_path: Path) -> None:  # case B48
    callbacks = Evaluate(every_env_steps=128, n_episodes=2, at_end=False), Checkpoint(every_env_steps=256)
    trainer = trainer_with(tmp_path / "run", *callbacks)
    trainer.fit(512)
    in_memory = evaluate_agent(trainer.agent, make(4), 8, seed=5)
    trainer.close()
    for name in ("512", "best"):
        shutil.copytree(tmp_path / "run" / "checkpoints" / name, tmp_path / "elsewhere" / name)
    shutil.rmtree(tmp_path / "run")
    last = Agent.load(tmp_path / "elsewhere" / "512")
    assert evaluate_agent(last, make(4), 8, seed=5).returns == in_memory.returns
    best = Agent.load(tmp_path / "elsewhere" / "best")
    assert best.normalizer is not None
    assert len(evaluate_agent(best, make(4), 2, seed=5).returns) == 2


def test_evaluation_logging_and_checkpoints_do_not_change_training(tmp_path: Path) -> None:  # cases B57, B59
    plain = trainer_with(None)
    plain.fit(384)
    watched = trainer_with(
        tmp_path,
        Evaluate(every_env_steps=128, n_episodes=3),
        Log(histograms=True, graph=True),
        Checkpoint(every_env_steps=128),
    )
    watched.fit(384)
    assert all(torch.equal(a, b) for a, b in zip(weights(plain), weights(watched), strict=True))
    for trainer in (plain, watched):
        trainer.close()


def test_evaluations_of_two_equal_runs_are_equal() -> None:  # case B59
    results = []
    for _ in range(2):
        callback = Evaluate(n_episodes=3)
        trainer = trainer_with(None, callback)
        trainer.fit(128)
        trainer.close()
        results.append({mode: result.returns for mode, result in callback.results.items()})
    assert results[0] == results[1] and set(results[0]) == {"deterministic", "stochastic"}


@pytest.mark.parametrize("log_every", [None, 256])
def test_a_resumed_run_ends_as_one_that_never_stopped(log_every: int | None, tmp_path: Path) -> None:
    def build(folder: Path) -> Trainer:
        return trainer_with(
            folder,
            Evaluate(every_env_steps=200, n_episodes=2),
            Log(every_env_steps=log_every),
            Checkpoint(every_env_steps=128, keep_last=None),
        )

    whole = build(tmp_path / "whole")
    whole.fit(640)
    cut = build(tmp_path / "cut")
    cut.fit(384)
    shutil.rmtree(
        tmp_path / "cut" / "checkpoints" / "384"
    )  # it was killed before this one: 256 is the newest
    source, broken = checkpoint.newest(tmp_path / "cut" / "checkpoints")
    source = source if source.name != "best" else tmp_path / "cut" / "checkpoints" / "256"
    resumed = build(tmp_path / "cut")
    resumed.load_state_dict(checkpoint.load(source)[0])
    resumed.fit(640)
    assert broken == []
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(resumed), strict=True))
    assert figures(tmp_path / "whole") == figures(tmp_path / "cut")
    for trainer in (whole, cut, resumed):
        trainer.close()


def figures(folder: Path) -> list[dict[str, Any]]:
    """The rows without what depends on the clock and the machine."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in row.items() if k not in ("wall_s", "fps") and "system/" not in k} for row in rows
    ]
