"""An agent loaded in another process is the agent that was saved, and one folder is all it needs."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.resume.runs import figures, last_checkpoint, train
from tests.resume.test_exact import config, ppo
from uniarena import checkpoint, make_env
from uniarena.agent import Agent
from uniarena.sampling.evaluation import evaluate_agent


def test_best_and_last_checkpoint_act_as_the_agent_in_memory_did(tmp_path: Path) -> None:  # case B48
    """Its evaluation while it trained, in the process that is gone, is the one that we get here."""
    settings = config({"id": "Pendulum-v1", "max_episode_steps": 25}, ppo(), total=1024)
    settings["training"] |= {"n_eval_episodes": 4, "eval_every_env_steps": 256}
    assert train(settings, tmp_path / "run") == 0
    rows = {row["env_steps"]: row for row in figures(tmp_path / "run")}
    evaluated = {steps: row["eval/return_mean"] for steps, row in rows.items() if "eval/return_mean" in row}
    assert len(evaluated) == 4
    copies = {}
    for name, source in (
        ("best", tmp_path / "run" / "checkpoints" / "best"),
        ("last", last_checkpoint(tmp_path / "run")),
    ):
        copies[name] = shutil.copytree(source, tmp_path / "elsewhere" / name)
    shutil.rmtree(tmp_path / "run")
    for name, folder in copies.items():
        steps = checkpoint.read_meta(folder)["counters"]["env_steps"]
        agent = Agent.load(folder)
        assert agent.normalizer is not None and int(agent.normalizer.moments.count) == steps
        env = make_env("Pendulum-v1", 4, max_episode_steps=25)
        again = evaluate_agent(agent, env, 4, seed=agent.streams.seed_for(f"evaluation/{steps}"))
        assert again.return_mean == evaluated[steps], name
    best = checkpoint.read_meta(copies["best"])["counters"]["env_steps"]
    assert evaluated[best] == max(evaluated.values())


def test_statistics_loaded_twice_are_not_applied_twice(tmp_path: Path) -> None:  # case B55
    env = make_env("Pendulum-v1", 2, wrappers=["normalize_observation"])
    agent = Agent.assemble(env, {"type": "ppo", "n_steps": 8})
    assert agent.normalizer is not None
    agent.normalizer.moments.mean.fill_(0.5)
    agent.normalizer.centre.fill_(0.5)
    agent.save(tmp_path / "agent")
    state = checkpoint.load(tmp_path / "agent")[0]["agent"]
    once = agent.act([0.1, 0.2, 0.3])
    agent.load_state_dict(state)
    agent.load_state_dict(state)
    assert agent.act([0.1, 0.2, 0.3]) == once
