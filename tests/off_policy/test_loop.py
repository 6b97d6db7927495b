"""Off-policy learners through the same loop: exact counts, one warm-up in the life of a run, exact resume, learning."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from uniarena import Agent, Trainer, make_env
from uniarena.batch import Rollout
from uniarena.config import ConfigError
from uniarena.sampling.evaluation import evaluate_agent
from uniarena.trainer.callbacks import Checkpoint
from uniarena.trainer.schedule import Counters, OffPolicySchedule

DQN = {
    "type": "dqn",
    "learning_starts": 100,
    "batch_size": 32,
    "learning_rate": 1e-3,
    "train_every_env_steps": 4,
    "updates_per_env_step": 0.25,
    "target_update_updates": 20,
}
SAC = {"type": "sac", "learning_starts": 100, "batch_size": 32, "learning_rate": 1e-3}
TD3 = {"type": "td3", "learning_starts": 100, "batch_size": 32, "learning_rate": 1e-3}
TASKS = {
    "dqn": ("CartPole-v1", DQN),
    "rainbow": ("CartPole-v1", {**DQN, "type": "rainbow", "target_update_env_steps": None}),
}
TASKS["dqn with a bonus"] = ("CartPole-v1", {**DQN, "n_step": 3})
TASKS |= {"sac": ("Pendulum-v1", SAC), "td3": ("Pendulum-v1", TD3)}
BUFFER = {"capacity": 2_000}


def trainer_of(task: str, run_dir: Path | None = None, num_envs: int = 2, **settings: Any) -> Trainer:
    spec, learner = TASKS[task]
    env = make_env(spec, num_envs)
    kind = "prioritized" if task == "rainbow" else "replay"
    parts: dict[str, Any] = {"buffer": {"type": kind, **BUFFER}}
    if "bonus" in task:
        parts["intrinsic"] = {"type": "rnd", "update_period": 3}
    agent = Agent.assemble(env, {**learner, **settings}, policy={"hidden_sizes": [32]}, parts=parts)
    callbacks = [Checkpoint(every_env_steps=500, safety_minutes=1e6)] if run_dir else []
    return Trainer(agent, env, callbacks=callbacks, run_dir=run_dir)


def everything(value: Any, path: str = "") -> dict[str, Any]:
    """Every number of a state by its path, but the clocks."""
    if isinstance(value, dict):
        return {p: v for key, entry in value.items() for p, v in everything(entry, f"{path}/{key}").items()}
    if isinstance(value, (list, tuple)):
        return {p: v for i, entry in enumerate(value) for p, v in everything(entry, f"{path}/{i}").items()}
    return {} if path.endswith("seconds") else {path: value}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, torch.as_tensor(b))
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    return bool(a == b)


@pytest.mark.parametrize("columns", [1, 3, 8])
def test_the_number_of_updates_is_exact_for_any_number_of_environments(columns: int) -> None:
    schedule = OffPolicySchedule(train_every=4, updates_per_env_step=0.5, learning_starts=10)
    counters, total = Counters(), 101

    class Ready:
        ready = True

    while counters.env_steps < total:
        wanted = schedule.env_steps(counters, columns, total)
        counters.env_steps += -(-wanted // columns) * columns
        counters.updates += schedule.updates_due(counters, Ready(), total)
    assert counters.updates == (counters.env_steps - 10) // 2


def test_an_iteration_closes_on_a_grid_that_a_resume_keeps() -> None:
    schedule = OffPolicySchedule(train_every=1, updates_per_env_step=1.0, learning_starts=0, iteration=100)
    assert schedule.iteration_end(Counters(), 1_000) == 100
    assert schedule.iteration_end(Counters(env_steps=137), 1_000) == 200
    assert schedule.iteration_end(Counters(env_steps=960), 990) == 990


def test_the_warm_up_is_random_and_learns_nothing() -> None:
    trainer = trainer_of("dqn", learning_starts=400)
    before = {name: p.clone() for name, p in trainer.agent.model.named_parameters()}
    seen: list[Rollout] = []
    observe = trainer.agent.observe
    trainer.agent.observe = lambda rollout: seen.append(rollout.clone()) or observe(rollout)
    trainer.fit(400)
    trainer.close()
    assert trainer.counters.updates == 0
    assert all(torch.equal(p, before[name]) for name, p in trainer.agent.model.named_parameters())
    actions = torch.cat([rollout.rows.action.flatten() for rollout in seen])
    assert 0.4 < actions.float().mean() < 0.6


@pytest.mark.parametrize("task", list(TASKS))
def test_interrupted_and_resumed_is_the_same_run(task: str, tmp_path: Path) -> None:
    whole = trainer_of(task, tmp_path / "whole")
    whole.fit(1_000)
    from uniarena import checkpoint

    state, _ = checkpoint.load(tmp_path / "whole" / "checkpoints" / "1000")
    again = trainer_of(task, tmp_path / "again")
    half, _ = checkpoint.load(tmp_path / "whole" / "checkpoints" / "500")
    assert half["trainer"]["counters"]["env_steps"] == 500
    again.load_state_dict(half)
    again.fit(1_000)
    other, _ = checkpoint.load(tmp_path / "again" / "checkpoints" / "1000")
    for trainer in (whole, again):
        trainer.close()
    first, second = everything(state), everything(other)
    assert first.keys() == second.keys()
    assert [path for path in first if not same(first[path], second[path])] == []
    assert any(path.startswith("/buffer") for path in first)


def test_dqn_learns_cartpole_a_little() -> None:
    trainer = trainer_of("dqn", learning_starts=500, updates_per_env_step=1.0, target_update_updates=200)
    trainer.fit(8_000)
    trainer.close()
    env = make_env("CartPole-v1", 4)
    score = evaluate_agent(trainer.agent, env, 8, seed=1).return_mean
    env.close()
    assert score > 60, "a random policy scores 22, an untrained one 9"


def test_log_probs_are_refused_where_they_cannot_be() -> None:
    env = make_env("CartPole-v1", 1)
    with pytest.raises(ConfigError, match="log-probs"):
        Agent.assemble(env, "ppo", parts={"explorer": {"type": "epsilon_greedy"}})
    env.close()
