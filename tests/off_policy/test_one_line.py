"""One line of YAML exchanges the learner: around a policy and an explorer of the user, and among relatives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cli.conftest import Told, ua  # noqa: F401  (a fixture)
from tests.off_policy.own_parts import Bursts, Policy
from uniarena import Agent, checkpoint
from uniarena.buffers.prioritized import PrioritizedReplay
from uniarena.buffers.replay import ReplayBuffer
from uniarena.run import train

PARTS = "tests.off_policy.own_parts"
JOINED = f"""\
environment: {{id: Pendulum-v1, num_envs: 2, max_episode_steps: 25, wrappers: [normalize_observation]}}
agent:
  policy:
    network: {PARTS}:Policy
    width: 24
  explorer:
    type: {PARTS}:Bursts
    every: 5
  buffer: {{capacity: 1000}}
learner:
  type: sac
  learning_starts: 40
  batch_size: 16
  n_step: 2
training: {{total_timesteps: 160, n_eval_episodes: 1, eval_every_env_steps: 80, save_every_env_steps: 80}}
"""


def changed(text: str, before: str, after: str) -> str:
    """The YAML with one line exchanged."""
    lines = text.splitlines()
    at = [i for i, line in enumerate(lines) if before in line]
    assert len(at) == 1
    lines[at[0]] = lines[at[0]].replace(before, after)
    return "\n".join(lines)


@pytest.mark.parametrize("learner", ["sac", "td3", "ddpg", "tqc", "redq", "droq"])
def test_a_users_policy_and_explorer_under_every_learner(learner: str, ua: Any) -> None:  # noqa: F811
    """Trained, evaluated and loaded from the command line; the parts are the user's own."""
    Path("joined.yaml").write_text(changed(JOINED, "type: sac", f"type: {learner}"), encoding="utf-8")
    often = ["learner.updates_per_env_step=1"] if learner in ("redq", "droq") else []
    told: Told = ua("train", "joined.yaml", *often, "--run-dir", "run", "--json")
    assert told.code == 0, told.err
    assert told.json["env_steps"] == 160
    assert ua("eval", "run", "--episodes", "2").code == 2, (
        "its classes are imported only where they are trusted"
    )
    assert ua("eval", "run", "--episodes", "2", "--trust").code == 0
    agent = Agent.load("run", trust=True)
    assert isinstance(agent.explorer, Bursts) and agent.explorer.cfg.every == 5
    modules = [module for module in agent.model.policy.modules() if isinstance(module, Policy)]
    assert len(modules) == 1 and modules[0].width == 24
    assert agent.action_map.env_space.contains(agent.act(np.zeros(3, np.float32)))
    state, meta = checkpoint.load(Path("run/checkpoints/160"))
    explored = state["agent"]["explorer"]
    assert explored == {"steps": 120, "bursts": 24}, "beyond the warm-up; evaluations do not count"
    assert meta["counters"]["updates"] == 120


# -- relatives -----------------------------------------------------------------------------------------------------
DISCRETE = """\
environment: {id: CartPole-v1, num_envs: 2}
agent:
  policy: {hidden_sizes: [16]}
  buffer: {capacity: 500}
learner:
  type: dqn
  learning_starts: 40
  batch_size: 16
  learning_rate: 1e-3
  target_update_updates: 10
  gamma: 0.97
training: {total_timesteps: 120, n_eval_episodes: 1}
"""
CONTINUOUS = """\
environment: {id: Pendulum-v1, max_episode_steps: 25}
agent:
  policy: {hidden_sizes: [16]}
  buffer: {capacity: 500}
learner:
  type: sac
  learning_starts: 40
  batch_size: 16
  learning_rate: 1e-3
  alpha_init: 0.5
  tau: 0.02
training: {total_timesteps: 80, n_eval_episodes: 1}
"""


@pytest.mark.parametrize("learner", ["dqn", "rainbow", "c51", "qr_dqn", "iqn"])
def test_from_dqn_to_its_relatives_by_one_line(learner: str, tmp_path: Path) -> None:
    """Whatever the config sets goes along; what it leaves out is the relative's own."""
    (tmp_path / "run.yaml").write_text(changed(DISCRETE, "type: dqn", f"type: {learner}"), encoding="utf-8")
    run = train(tmp_path / "run.yaml", run_dir=tmp_path / "run", quiet=True).run
    agent = Agent.load(run)
    cfg = agent.learner.cfg
    assert (cfg.gamma, cfg.batch_size, cfg.target_interval, cfg.learning_rate) == (0.97, 16, 10, 1e-3)
    kind = agent.spec["buffer"]["type"]
    assert (
        kind == ("prioritized" if learner == "rainbow" else "replay")
        and agent.spec["buffer"]["capacity"] == 500
    )
    assert cfg.n_step == (3 if learner == "rainbow" else 1) and cfg.noisy == (learner == "rainbow")
    state, _ = checkpoint.load(run / "checkpoints" / "120")
    assert ("priorities" in state["buffer"]) == (learner == "rainbow")


@pytest.mark.parametrize("learner", ["sac", "tqc", "redq", "droq"])
def test_from_sac_to_its_relatives_by_one_line(learner: str, tmp_path: Path) -> None:
    text = changed(CONTINUOUS, "type: sac", f"type: {learner}")
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    often = ["learner.updates_per_env_step=2"] if learner in ("redq", "droq") else []
    agent = Agent.load(train(tmp_path / "run.yaml", often, run_dir=tmp_path / "run", quiet=True).run)
    cfg = agent.learner.cfg
    assert (cfg.tau, cfg.alpha_init, cfg.learning_rate, cfg.batch_size) == (0.02, 0.5, 1e-3, 16)
    assert agent.model.q.members == {"redq": 10}.get(learner, 2)
    assert agent.model.value(torch.zeros(1, 3), torch.zeros(1, 1)).shape[2:] == (
        (25,) if learner == "tqc" else ()
    )


@pytest.mark.parametrize("kind", ["replay", "prioritized"])
def test_a_buffer_that_is_named_stays_with_every_learner(kind: str) -> None:
    from uniarena import make_env

    for learner in ("dqn", "rainbow"):
        env = make_env("CartPole-v1")
        agent = Agent.assemble(env, learner, parts={"buffer": {"type": kind, "capacity": 100}})
        env.close()
        assert type(agent.buffer) is (PrioritizedReplay if kind == "prioritized" else ReplayBuffer)
