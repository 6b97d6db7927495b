"""Every story in examples/ runs, in short, and shows what it says. `make examples` runs them at full length."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples import (
    bit_flip,
    curriculum,
    long_chain,
    neighbours,
    offline_to_online,
    own_callback,
    own_environment,
    own_learner,
    own_physics,
    python_story,
    recall,
    shared_trunk,
    stitching,
    tensor_cartpole,
)
from uniarena import Agent, Trainer, make_env, train
from uniarena.data import load as load_data
from uniarena.envs.checker import check_env
from uniarena.trainer.events import LearnStep

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_every_example_is_run_here_and_says_how_to_run_it():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names <= set(globals())
    for name in names:
        module = importlib.import_module(f"examples.{name}")
        assert f"python examples/{name}.py" in (module.__doc__ or "")
        assert callable(module.main)


def test_hindsight_solves_what_chance_does_not(capsys: pytest.CaptureFixture[str]):
    torch.set_num_threads(1)
    with_hindsight, without = bit_flip.main(4_000, bits=8)
    assert with_hindsight > without + 1.0 and "8 bits, without" in capsys.readouterr().out


def test_an_agent_from_data_goes_on_online(capsys: pytest.CaptureFixture[str]):
    torch.set_num_threads(1)
    returns = offline_to_online.main(60, 200, episodes=2)
    assert list(returns) == ["data", "offline", "online"] and returns["data"] == pytest.approx(-786, abs=5)
    assert -2_000 < returns["online"] < 0 and returns["online"] != returns["offline"]
    assert "online: mean return" in capsys.readouterr().out


def test_a_graph_encoder_hears_what_an_mlp_does_not(capsys: pytest.CaptureFixture[str]):
    torch.set_num_threads(1)
    graph, mlp = neighbours.main(6_144)
    assert graph > 0.9 > 0.6 > mlp and "mlp" in capsys.readouterr().out


def test_a_key_value_memory_recalls_what_an_mlp_cannot_know(capsys: pytest.CaptureFixture[str]):
    torch.set_num_threads(1)
    memory, nothing = recall.main(16_384, gap=4)
    assert memory > 0.9 > 0.5 > nothing and "gap of 4, no memory" in capsys.readouterr().out


def test_a_curriculum_opens_what_stays_shut_without(capsys: pytest.CaptureFixture[str]):
    torch.set_num_threads(1)
    plain, taught = curriculum.main(32_768, locks=14)
    assert taught > 0.9 > plain and "14 locks" in capsys.readouterr().out


def test_counts_lead_along_a_chain_that_a_crumb_keeps_one_from(capsys: pytest.CaptureFixture[str]):
    torch.set_num_threads(1)
    counted, plain = long_chain.main(40_960, cells=30)
    assert counted > 0.9 > 0.1 > plain and "without" in capsys.readouterr().out


def test_no_walk_leads_through_the_maze_whose_optimum_is_known(tmp_path: Path):
    maze, data = stitching.Maze(), load_data(stitching.write(tmp_path / "stitching.npz"))
    assert maze.values(maze.goal)[maze.start] == pytest.approx(10 - 21 * 0.1), (
        "22 steps, the last one arrives"
    )
    walks = [set(episode.obs.tolist()) for episode in data]
    assert max(data.lengths) == 14 and not any({maze.start, maze.goal} <= cells for cells in walks)
    assert any(maze.goal in cells for cells in walks) and any(maze.start in cells for cells in walks)
    assert check_env(stitching.Maze) == []


@pytest.mark.slow
def test_parts_of_walks_are_put_together_where_cloning_is_lost(capsys: pytest.CaptureFixture[str]):
    torch.set_num_threads(1)
    shares = stitching.main(2_000, seeds=[0])
    assert shares["iql"][0] > 0.9 and shares["discrete_cql"][0] > 0.9 and shares["bc"][0] < 0.4
    assert "discrete_cql: 100% of the best return, 7.90" in capsys.readouterr().out


def test_one_trunk_trains_on_a_box_and_on_discrete(capsys: pytest.CaptureFixture[str]):
    found = shared_trunk.main(2_048)
    assert len(found) == 2 and len(capsys.readouterr().out.splitlines()) == 2


def test_a_tensor_simulator_is_not_copied(capsys: pytest.CaptureFixture[str]):
    tensor_cartpole.main(64, 4_096)
    out = capsys.readouterr().out
    assert "not a copy of it: True" in out and "64 instances on" in out


def test_own_learner_learns_and_fits_on_a_page():
    assert len((EXAMPLES / "own_learner.py").read_text().splitlines()) <= 60
    assert own_learner.main(16_000) > 100


def test_own_environment_is_sound(capsys: pytest.CaptureFixture[str]):
    own_environment.main(1_024)
    assert "Thermostat: no problems found." in capsys.readouterr().out


def test_own_physics_goes_on_from_its_state(capsys: pytest.CaptureFixture[str]):
    own_physics.main(8_192)
    assert "Cargo: no problems found." in capsys.readouterr().out
    env = make_env(own_physics.Cargo, 8)
    assert env.tensor and env.has_final_obs
    env.reset(seed=3)
    action = torch.full((8, 1), 0.5)
    env.step(action)
    state = env.state_dict()
    assert state is not None
    ahead = [env.step(action).obs.clone() for _ in range(120)]  # over the end of an episode
    env.load_state_dict(state)
    assert all(torch.equal(env.step(action).obs, obs) for obs in ahead)


def test_the_story_from_parts():
    assert python_story.main(6_000) >= 9


def test_the_documented_names_of_own_parts_are_importable(tmp_path: Path):
    config = {
        "environment": {"id": "examples.own_environment:Thermostat", "kwargs": {"outside": -5.0}},
        "learner": {"type": "examples.own_learner:Reinforce", "n_steps": 64},
        "callbacks": [{"type": "examples.own_callback:Gentle"}],
        "agent": {"policy": {"network": "examples.shared_trunk:SharedTrunk", "width": 8}},
        "training": {"total_timesteps": 128, "n_eval_episodes": 1},
    }
    assert train(config, run_dir=tmp_path / "run", quiet=True).env_steps == 128
    assert check_env("examples.own_physics:Cargo") == []


class Watch:
    """Keeps the raw gradients of every step; stands before the callback that changes them."""

    def __init__(self) -> None:
        self.gradients: list[dict[str, Tensor]] = []

    def on_learn_step(self, trainer: Any, event: LearnStep) -> None:
        self.gradients.append({name: gradient.clone() for name, gradient in event.gradients.items()})


def test_own_callback_is_seen_in_the_weights():
    """Plain gradient descent, so that a step is the gradient times the rate."""
    env = make_env("CartPole-v1", 4)
    learner = {"type": "ppo", "n_steps": 16, "batch_size": None, "n_epochs": 2, "learning_rate": 0.1}
    agent = Agent.assemble(env, {**learner, "optimizer": {"type": "sgd"}, "max_grad_norm": None})
    before = {name: p.detach().clone() for name, p in agent.model.named_parameters()}
    watch = Watch()
    gentle = own_callback.Gentle(own_callback.GentleConfig(limit=1e-3, halve_at=2))
    trainer = Trainer(agent, env, callbacks=[watch, gentle])
    trainer.fit(64)
    trainer.close()
    first, second = watch.gradients
    assert max(float(g.abs().max()) for g in first.values()) > 1e-2  # clipping had something to do
    for name, parameter in agent.model.named_parameters():
        step = 0.1 * first[name].clamp(-1e-3, 1e-3) + 0.05 * second[name].clamp(-1e-3, 1e-3)
        torch.testing.assert_close(parameter.detach(), before[name] - step, rtol=0, atol=1e-7)
    assert agent.learner.optimizer.lr == pytest.approx(0.05)
    assert own_callback.main(512) == [1e-3, 5e-4]
