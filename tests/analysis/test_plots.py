"""Pictures: what they show is computed right, and drawn where the extra is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import uniarena
from uniarena import cli
from uniarena.analysis.doctor.table import Table
from uniarena.analysis.plots import data, draw, probe
from uniarena.config import ConfigError

SMALL = {"hidden_sizes": [8]}
REPLAY = {"learning_starts": 20, "batch_size": 8}


def agent_and_env(env_id: Any, learner: dict[str, Any], wrappers: Any = ()) -> tuple[Any, Any]:
    env = uniarena.make_env(env_id, num_envs=1, seed=0, wrappers=list(wrappers))
    parts = {"buffer": {"capacity": 100}} if "learning_starts" in learner else {}
    return uniarena.Agent.assemble(env, learner, SMALL, parts=parts), env


class Count(gymnasium.Env):
    """Episodes of four steps with reward 1."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 4
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self._obs(), 1.0, self.left == 0, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.left / 4, 0.5, (self.left % 2) / 2], np.float32)


# -- from figures --------------------------------------------------------------------------------------------------
def test_panels_hold_what_is_there_and_the_band_of_their_figure():
    rows = [{"env_steps": k, "return_mean": 1.0 * k, "kl": 0.01, "odd": 3.0} for k in range(3)]
    found = data.panels(Table(rows))
    assert [(list(panel.curves), panel.band) for panel in found] == [
        (["return_mean"], None),
        (["kl"], (0.0, 0.05)),
    ]
    assert found[0].curves["return_mean"].values.tolist() == [0.0, 1.0, 2.0]


def test_every_band_is_of_a_figure_that_is_drawn():
    assert set(data.BANDS) <= {name for names in data.PANELS for name in names}


def test_gradient_flow_leaves_gaps_where_nothing_was_reported():
    rows = [
        {"env_steps": 1, "gradient/b": 1.0, "gradient/a": 2.0},
        {"env_steps": 2},
        {"env_steps": 3, "gradient/a": 4.0},
    ]
    flow = data.gradient_flow(Table(rows))
    assert flow is not None and flow.layers == ["b", "a"] and flow.steps.tolist() == [1, 3]
    assert np.isnan(flow.norms[0, 1]) and flow.norms[1].tolist() == [2.0, 4.0]
    assert data.gradient_flow(Table(rows[1:2])) is None


# -- from the agent ------------------------------------------------------------------------------------------------
def test_predictions_are_held_against_what_followed():
    agent, env = agent_and_env(Count, {"type": "ppo", "gamma": 0.5, "n_steps": 8})
    rows = probe.walk(agent, env, 9, seed=3)
    found = probe.worth(agent, rows)
    assert found is not None and found.realised.tolist() == [1.875, 1.75, 1.5, 1.0] * 2
    expected = agent.model.value(rows.obs.flatten(0, 1))[:8]
    assert np.allclose(found.predicted, expected.detach().numpy())


@pytest.mark.parametrize(
    ("env_id", "learner", "count", "named"),
    [
        ("CartPole-v1", {"type": "ppo"}, 2, "probability of action 0"),
        ("CartPole-v1", {"type": "dqn", **REPLAY}, 2, "Q of action 0"),
        ("CartPole-v1", {"type": "sac", **REPLAY}, 2, "probability of action 0"),
        ("Pendulum-v1", {"type": "ppo"}, 1, "mean of action 0"),
        ("Pendulum-v1", {"type": "td3", **REPLAY}, 1, "mean of action 0"),
    ],
)
def test_the_policy_over_two_entries(env_id: str, learner: dict[str, Any], count: int, named: str):
    agent, env = agent_and_env(env_id, learner)
    rows = probe.walk(agent, env, 40, seed=3)
    found = probe.policy_map(agent, rows, (2, 0))
    assert found is not None and found.layers.shape == (count, probe.CELLS, probe.CELLS)
    assert found.names[0] == named and found.axes == ("observation 2", "observation 0")
    middle = rows.obs.flatten(0, 1).median(0).values
    middle[2], middle[0] = found.extent[1], found.extent[2]  # right, bottom
    corner = probe._answers(agent, middle[None])[0]
    assert corner is not None and np.allclose(found.layers[:, 0, -1], corner[0], atol=1e-5)
    if named.startswith("prob"):
        assert np.allclose(found.layers.sum(0), 1.0, atol=1e-5)
    assert probe.worth(agent, rows) is not None or env_id == "Pendulum-v1"


def test_the_policy_over_a_walk_where_observations_are_not_flat():
    agent, env = agent_and_env("FrozenLake-v1", {"type": "ppo"})
    found = probe.policy_map(agent, probe.walk(agent, env, 20, seed=1))
    assert found is not None and found.axes == () and found.layers.shape == (4, 20)


def test_entries_that_are_not_there_and_entries_that_move_most():
    agent, env = agent_and_env(Count, {"type": "ppo"})
    rows = probe.walk(agent, env, 20, seed=1)
    with pytest.raises(ConfigError, match="entries 0 to 2"):
        probe.policy_map(agent, rows, (0, 3))
    found = probe.policy_map(agent, rows)
    assert found is not None and found.axes == ("observation 0", "observation 2")


def test_a_walk_moves_nothing():
    agent, env = agent_and_env("CartPole-v1", {"type": "ppo"})
    before = torch.get_rng_state().clone(), agent.streams.torch("agent").get_state().clone()
    once, twice = (probe.walk(agent, env, 20, seed=1) for _ in range(2))
    assert torch.equal(once.obs, twice.obs) and torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], agent.streams.torch("agent").get_state())


# -- drawn -----------------------------------------------------------------------------------------------------------
def trained(folder: Path) -> Path:
    config = {
        "environment": "CartPole-v1",
        "agent": {"policy": SMALL},
        "learner": {"type": "ppo", "n_steps": 64, "n_epochs": 1},
        "training": {"total_timesteps": 256, "n_eval_episodes": 1},
        "callbacks": [{"type": "monitor", "every_env_steps": 64}],
    }
    return uniarena.train(config, run_dir=folder, quiet=True).run


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]):
    run = trained(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.invoke(["plot", str(run)]) == 1
    assert 'pip install "uniarena[plot]"' in capsys.readouterr().err
    assert cli.invoke(["plot", str(run), "--dims", "1"]) == 2
    assert cli.invoke(["plot", str(tmp_path)]) == 2


@pytest.mark.extra("plot")
def test_four_pictures_as_files_and_in_tensorboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = trained(tmp_path / "run")
    assert cli.invoke(["plot", str(run), "--dims", "0,2"]) == 0
    names = ["curves", "gradients", "policy", "values"]
    assert sorted(path.stem for path in (run / "plots").glob("*.png")) == names
    for name in names:
        with Image.open(run / "plots" / f"{name}.png") as picture:
            assert len(picture.convert("L").getcolors() or []) > 5
    events = EventAccumulator(str(run / "events"), size_guidance={"images": 0}).Reload()
    assert sorted(events.Tags()["images"]) == [f"plots/{name}" for name in names]
    assert events.Images("plots/policy")[0].step == 256


@pytest.mark.extra("plot")
def test_a_policy_over_a_walk_is_drawn_too(tmp_path: Path):
    found = probe.Map(np.random.default_rng(0).random((2, 30)), ["a", "b"])
    assert draw.policy(found, tmp_path / "walk.png").stat().st_size > 1000
