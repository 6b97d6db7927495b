"""Two configs as users write them: they load and train unchanged, and their keys mean what their comments say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import uniarena
from uniarena import assembly, cli
from uniarena.config import ConfigError, load

HERE = Path(__file__).parent
LANDER, ROBOT = HERE / "lunarlander_rnd_ppo.yaml", HERE / "robot_distributed.yaml"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


# -- the lander ----------------------------------------------------------------------------------------------------
def test_the_lander_is_understood_as_it_is_written() -> None:
    exp = load(LANDER)
    assert exp.environment.id == "LunarLanderContinuous-v3"
    (notice,) = exp.notices
    assert "LunarLanderContinuous-v2 is an old id" in notice and "lunarlander_rnd_ppo.yaml:9" in notice
    assert [wrapper["type"] for wrapper in exp.environment.wrappers] == [
        "normalize_observation",
        "normalize_reward",
    ]
    assert exp.experiment.seed == 42 and exp.experiment.project == "Arena_Demo"
    assert dict(exp.agent.intrinsic[0]) == {
        "type": "rnd",
        "feature_dim": 128,
        "learning_rate": 1e-4,
        "reward_scale": 0.01,
    }
    assert exp.learner["type"] == "ppo" and exp.learner["optimizer"]["type"] == "adam"
    assembly.check(exp)


def test_the_landers_intervals_mean_every_iteration_every_ten_and_every_five() -> None:
    exp = load(LANDER, ["environment.id=Pendulum-v1"])
    env = assembly.build_env(exp, training=True)
    try:
        agent = assembly.build_agent(exp, env)
        every, notices = assembly.intervals(exp, agent, env)
    finally:
        env.close()
    rollout = 8 * 2048
    assert every == {"log": rollout, "save": 10 * rollout, "eval": 5 * rollout, "monitor": rollout}
    assert notices == []


def test_intervals_are_kept_in_a_run() -> None:
    small = [
        "environment.id=Pendulum-v1",
        "environment.num_envs=2",
        "learner.n_steps=8",
        "learner.batch_size=16",
    ]
    small += ["environment.max_episode_steps=20"]
    result = uniarena.train(
        LANDER, [*small, "training.total_timesteps=320", "training.n_eval_episodes=1"], quiet=True
    )
    found = rows(result.run)
    assert [row["env_steps"] for row in found] == list(range(16, 321, 16))
    assert found[-1]["epochs"] == 200
    assert [row["env_steps"] for row in found if "eval/return_mean" in row] == [80, 160, 240, 320]
    saved = {path.name for path in (result.run / "checkpoints").iterdir()}
    assert saved == {"160", "320", "best"}
    assert result.run.parent.name == "Arena_Demo" and result.run.name.startswith("LunarLander_RND_PPO-s42-")
    for name in ("predictor_loss", "intrinsic_return_mean", "total_return_mean", "return_mean"):
        assert any(name in row for row in found), sorted(found[-1])


@pytest.mark.extra("box2d")
@pytest.mark.parametrize("more", [[], ["learner.optimizer.type=SAMPO", "learner.optimizer.rho=0.05"]])
def test_the_lander_trains_from_the_command_line(more: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    short = ["learner.n_steps=32", "training.n_eval_episodes=1", "environment.max_episode_steps=100"]
    code = cli.invoke(["train", str(LANDER), "training.total_timesteps=512", *short, *more, "--json"])
    told = capfd.readouterr()
    assert code == 0, told.err
    run = Path(json.loads(told.out)["run"])
    agent = uniarena.Agent.load(run)
    assert agent.normalizer is not None and agent.reward_scaler is not None
    assert [type(bonus).__name__ for bonus in agent.bonuses] == ["RND"]
    assert agent.act([0.0] * 8).shape == (2,)


def test_sampo_is_the_optimiser_that_some_mean_by_it() -> None:
    exp = load(
        LANDER, ["environment.id=Pendulum-v1", "learner.optimizer.type=SAMPO", "learner.optimizer.rho=0.1"]
    )
    assert dict(exp.learner["optimizer"]) == {"type": "sam", "rho": 0.1}
    env = assembly.build_env(exp, training=True)
    try:
        optimizer = assembly.build_agent(exp, env).learner.optimizer
    finally:
        env.close()
    assert optimizer.sharpness.rho == 0.1 and type(optimizer.torch).__name__ == "FusedAdam"


# -- the robot -----------------------------------------------------------------------------------------------------
def test_the_robot_is_understood_as_it_is_written() -> None:
    exp = load(ROBOT)
    assert exp.environment.id == "HalfCheetah-v5" and exp.environment.num_envs == 16
    learner = dict(exp.learner)
    assert learner["type"] == "ppo"  # implied by agent.type
    assert (learner["n_steps"], learner["train_batch_size"]) == (256, 8192)
    assert "batch_size" not in learner  # the minibatch is the learner's default
    assert learner["learning_rate"] == 3e-4
    assert dict(learner["optimizer"]) == {"type": "adamw", "weight_decay": 1e-5}
    told = " | ".join(exp.notices)
    assert "training.total_timesteps is not given; the default is 1,000,000" in told
    assert "where there is no GPU, gloo takes its place" in told
    assert "sync_period = 10 has no effect yet with one learner" in told
    assembly.check(exp)


def test_a_second_learning_rate_is_a_conflict() -> None:
    text = ROBOT.read_text().replace("rollout_length: 256", "rollout_length: 256\n  learning_rate: 1e-3")
    Path("two.yaml").write_text(text)
    with pytest.raises(ConfigError, match="given twice") as caught:
        load("two.yaml")
    message = str(caught.value)
    assert (
        "training.learning_rate (two.yaml:8)" in message and "training.optimizer.lr (two.yaml:12)" in message
    )


def test_the_robot_gathers_rollouts_until_the_train_batch_is_full(capfd: pytest.CaptureFixture[str]) -> None:
    overrides = ["environment.id=Pendulum-v1", "training.total_timesteps=8192", "training.n_eval_episodes=1"]
    code = cli.invoke(["train", str(ROBOT), *overrides, "learner.n_epochs=1", "--run-dir", "run"])
    told = capfd.readouterr()
    assert code == 0, told.err
    first, second = rows(Path("run"))
    assert (first["env_steps"], first["updates"]) == (4096, 0)
    assert (second["env_steps"], second["updates"]) == (8192, 1)
    agent = uniarena.Agent.load("run")
    assert agent.learner.cfg.batch_size == 64
    optimizer = agent.learner.optimizer.torch
    assert type(optimizer).__name__ == "AdamW"
    assert max(group["weight_decay"] for group in optimizer.param_groups) == 1e-5


@pytest.mark.extra("mujoco")
def test_the_robot_trains_on_its_own_environment(capfd: pytest.CaptureFixture[str]) -> None:
    short = ["learner.n_steps=16", "learner.train_batch_size=512", "environment.max_episode_steps=50"]
    code = cli.invoke(
        ["train", str(ROBOT), "training.total_timesteps=512", "training.n_eval_episodes=1", *short, "--json"]
    )
    told = capfd.readouterr()
    assert code == 0, told.err
    assert json.loads(told.out)["env_steps"] == 512
