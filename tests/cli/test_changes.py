"""`resume RUN key=value …`: what may change, where it is recorded, that it takes effect, and what may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import uniarena
from tests.cli.test_runs import checkpoints, rows, weights
from uniarena import checkpoint

US = "tests.cli.users"
LINEAR = "learner.learning_rate={type: linear, start: 1e-3, end: 0}"
OFF_POLICY = """\
environment: {id: Pendulum-v1}
learner: {type: td3, learning_starts: 20, batch_size: 8}
agent: {policy: {hidden_sizes: [8]}, buffer: {capacity: 500}}
training: {total_timesteps: 60, n_eval_episodes: 1, eval_every_env_steps: 40, save_every_env_steps: 40}
"""


def changes(run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(run, "changes.jsonl").read_text().splitlines()]


def saved(folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return checkpoint.load(Path(folder))


def groups(folder: str) -> list[dict[str, Any]]:
    optimizers = saved(folder)[0]["agent"]["learner"]["_extra_state"]["optimizers"]
    return [group for one in optimizers.values() for group in one["torch"]["param_groups"]]


def same(a: str, b: str) -> bool:
    ours, theirs = weights(a), weights(b)
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.fixture
def stopped(ua):
    """A run of 128 steps, stopped at 64."""
    assert ua("train", "small.yaml", f"callbacks=['{US}:CtrlC']", "--run-dir", "here").code == 130
    return ua


def test_a_change_is_recorded_told_and_takes_effect(stopped) -> None:
    told = stopped("resume", "here", "learner.lr=1e-4", "learner.optimizer.eps=0.01", "learner.gamma=0.9")
    assert told.code == 0, told.err
    expected = [
        {"env_steps": 64, "key": "learner.learning_rate", "old": 3e-4, "new": 1e-4},
        {"env_steps": 64, "key": "learner.gamma", "old": 0.99, "new": 0.9},
        {"env_steps": 64, "key": "learner.optimizer.eps", "old": None, "new": 0.01},
    ]
    assert changes("here") == expected
    assert "changed at 64 env steps: learner.learning_rate 0.0003 → 0.0001" in told.err
    learner = yaml.safe_load(Path("here/config.yaml").read_text())["learner"]
    assert (learner["learning_rate"], learner["gamma"], learner["optimizer"]["eps"]) == (1e-4, 0.9, 0.01)
    assert [row["learning_rate"] for row in rows("here")] == [3e-4, 3e-4, 1e-4, 1e-4]
    (group,) = groups("here/checkpoints/128")
    assert (group["lr"], group["eps"]) == (1e-4, 0.01)
    assert groups("here/checkpoints/64")[0]["eps"] == 1e-5
    assert saved("here/checkpoints/64")[1].get("changes") is None
    meta = saved("here/checkpoints/128")[1]
    assert meta["changes"] == expected and yaml.safe_load(meta["config"])["learner"]["gamma"] == 0.9
    resumed = json.loads(Path("here/provenance.json").read_text())["resumed"]
    assert [entry["changes"] for entry in resumed] == [expected] and resumed[0]["env_steps"] == 64


def test_what_follows_depends_on_the_change_and_on_nothing_else(stopped) -> None:
    assert stopped("resume", "here/checkpoints/64", "learner.gamma=0.5", "--as", "fork").code == 0
    assert stopped("resume", "here/checkpoints/64", "--as", "plain").code == 0
    assert stopped("resume", "here", "learner.gamma=0.5").code == 0
    assert same("here/checkpoints/128", "fork/checkpoints/128")
    assert not same("here/checkpoints/128", "plain/checkpoints/128")
    stopped("train", "small.yaml", "--run-dir", "straight")
    assert same("plain/checkpoints/128", "straight/checkpoints/128")


def test_a_value_that_is_the_present_one_is_no_change(stopped) -> None:
    assert stopped("resume", "here", "learner.clip_range=0.2", "learner.lr=0.0003").code == 0
    assert not Path("here/changes.jsonl").exists()
    stopped("train", "small.yaml", "--run-dir", "straight")
    assert same("here/checkpoints/128", "straight/checkpoints/128")


def test_changes_gather_over_several_resumes_also_by_hand_in_the_file(ua) -> None:
    ua("train", "small.yaml", "--run-dir", "here")
    assert ua("resume", "here", "training.total_timesteps=192", "learner.ent_coef=0.1").code == 0
    config = Path("here/config.yaml")
    config.write_text(config.read_text().replace("total_timesteps: 192", "total_timesteps: 256"))
    assert ua("resume", "here").code == 0
    assert [(c["env_steps"], c["key"], c["old"], c["new"]) for c in changes("here")] == [
        (128, "learner.ent_coef", 0.0, 0.1),
        (128, "training.total_timesteps", 128, 192),
        (192, "training.total_timesteps", 192, 256),
    ]


def test_a_finished_run_is_extended_from_the_command_line_and_its_schedules_say_what_they_do(ua) -> None:
    ua("train", "small.yaml", LINEAR, "learner.clip_range={type: constant, start: 0.2}", "--run-dir", "here")
    told = ua("resume", "here")
    assert told.code == 3 and "uniarena resume here training.total_timesteps=256" in told.err
    assert ua("resume", "here", "training.total_timesteps=100").code == 3
    told = ua("resume", "here", "training.total_timesteps=256")
    assert told.code == 0, told.err
    assert (
        "learner.learning_rate follows the new length of the run: 0 → 0.0005 at 128 of 256 env steps "
        "(linear from 0.001 to 0)" in told.err
    )
    assert "clip_range follows" not in told.err
    found = rows("here")
    assert [row["env_steps"] for row in found] == list(range(32, 257, 32))
    for row in found[4:]:
        assert row["learning_rate"] == pytest.approx(1e-3 * (1 - row["env_steps"] / 256), abs=1e-9)
    assert "128" in checkpoints("here") and "256" in checkpoints("here")


def test_what_adapts_itself_goes_on_where_it_was(ua) -> None:
    rate = "learner.learning_rate={type: kl_adaptive, start: 1e-3, target_kl: 0.01}"
    ua("train", "small.yaml", rate, "--run-dir", "here")
    last = rows("here")[-1]["learning_rate"]
    assert last != 1e-3
    told = ua("resume", "here", "training.total_timesteps=256")
    assert told.code == 0 and "learning_rate follows" not in told.err
    assert rows("here")[4]["learning_rate"] / last in (
        pytest.approx(r) for r in (1.0, 1.5, 1 / 1.5, 2.25, 1 / 2.25)
    )
    told = ua("resume", "here", rate.replace("1e-3", "1e-2"), "training.total_timesteps=512")
    assert told.code == 2 and "has been adapted since" in " ".join(told.err.split())


@pytest.mark.parametrize(
    ("override", "key", "way_out"),
    [
        ("agent.policy.hidden_sizes=[9]", "agent.policy.hidden_sizes", "hidden_sizes=[9]"),
        ("environment.id=Acrobot-v1", "environment.id", "agent.init_from=here"),
        ("environment.num_envs=3", "environment.num_envs", "agent.init_from=here"),
        ("environment.wrappers=[normalize_reward]", "environment.wrappers", "agent.init_from=here"),
        ("environment.kwargs={sutton: true}", "environment.kwargs.sutton", "agent.init_from=here"),
        ("experiment.seed=4", "experiment.seed", "agent.init_from=here"),
        ("experiment.run_dir=there", "experiment.run_dir", "--as there"),
        ("learner.type=a2c", "learner.type", "agent.init_from=here"),
        ("learner.optimizer.type=sgd", "learner.optimizer.type", "agent.init_from=here"),
        ("learner.ent_coef=auto", "learner.ent_coef", "agent.init_from=here"),
        ("learner.normalize_return=popart", "learner.normalize_return", "normalize_return=popart"),
        ("agent.intrinsic=rnd", "agent.intrinsic", "agent.init_from=here"),
        ("callbacks=[{type: early_stop, threshold: 1}]", "callbacks", "agent.init_from=here"),
    ],
)
def test_what_shapes_the_state_of_a_run_is_refused_by_name(ua, override: str, key: str, way_out: str) -> None:
    ua("train", "small.yaml", "--run-dir", "here")
    before = {path: path.read_bytes() for path in Path("here").rglob("*") if path.is_file()}
    told = ua("resume", "here", override, "training.total_timesteps=256", "--json")
    assert told.code == 2 and "Traceback" not in told.err
    faults = told.json["error"]["faults"]
    assert key in {fault["path"] for fault in faults}
    assert "cannot be changed in a run that has begun" in told.err
    assert any(way_out in fault["fix"] for fault in faults)
    assert {path: path.read_bytes() for path in Path("here").rglob("*") if path.is_file()} == before


def test_a_key_that_does_not_exist_is_bad_input(stopped) -> None:
    told = stopped("resume", "here", "learner.gama=0.5")
    assert told.code == 2 and "gamma" in told.err


def test_keys_of_a_callback_may_change_and_its_state_goes_on(ua) -> None:
    early = "callbacks=[{type: early_stop, threshold: 1000}]"
    ua("train", "small.yaml", early, "--run-dir", "here")
    told = ua("resume", "here", "training.total_timesteps=512", "callbacks.0.threshold=1")
    assert told.code == 0, told.err
    assert {change["key"] for change in changes("here")} == {
        "training.total_timesteps",
        "callbacks.0.threshold",
    }
    assert rows("here")[-1]["env_steps"] < 512  # now it is soon good enough


@pytest.mark.parametrize(
    "override",
    [
        "training.guard.rule=skip",
        "experiment.notes=warmer",
        "learner.n_steps=8",
        "learner.on_high_kl=stop_epoch",
        "learner.optimizer.accumulate=2",
        "learner.clip_range={type: kl_adaptive, start: 0.2, target_kl: 0.01}",
    ],
)
def test_other_keys_that_no_state_is_shaped_by(stopped, override: str) -> None:
    told = stopped("resume", "here", override)
    assert told.code == 0, told.err
    assert [change["key"] for change in changes("here")] == [override.partition("=")[0]]


def test_time_outs_of_workers_may_change_and_their_number_may_not(ua) -> None:
    workers = "environment.vectorization=async"
    ua("train", "small.yaml", workers, f"callbacks=['{US}:CtrlC']", "--run-dir", "here")
    told = ua("resume", "here", "environment.workers.processes=1")
    assert told.code == 2 and "environment.workers.processes" in told.err
    told = ua("resume", "here", "environment.workers.timeout_s=60")
    assert told.code == 0, told.err
    assert [(c["key"], c["old"], c["new"]) for c in changes("here")] == [
        ("environment.workers.timeout_s", 600.0, 60.0)
    ]


@pytest.mark.parametrize(
    ("override", "code"),
    [
        ("learner.target_noise=0.1", 0),
        ("learner.n_step=3", 0),
        ("learner.batch_size=16", 0),
        ("agent.explorer.sigma=0.3", 0),
        ("training.save_every_env_steps=30", 0),
        ("learner.n_critics=3", 2),
        ("learner.n_targets=2", 2),
        ("learner.updates_per_env_step=2", 2),
        ("learner.learning_starts=10", 2),
        ("agent.buffer.capacity=600", 2),
        ("agent.buffer.type=prioritized", 2),
        ("agent.explorer.type=ornstein_uhlenbeck", 2),
    ],
)
def test_off_policy_runs_change_likewise(ua, override: str, code: int) -> None:
    Path("td3.yaml").write_text(OFF_POLICY)
    assert ua("train", "td3.yaml", "--run-dir", "here").code == 0
    told = ua("resume", "here", override, "training.total_timesteps=100")
    assert told.code == code, told.err
    if code:
        assert override.partition("=")[0] in told.err
    else:
        assert override.partition("=")[0] in {change["key"] for change in changes("here")}
        assert saved("here/checkpoints/100")[1]["counters"]["updates"] == 80


def test_a_network_whose_code_has_changed_is_told(ua, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cli import users

    small = Path("small.yaml")
    small.write_text(small.read_text().replace("{hidden_sizes: [8]}", f"{{network: '{US}:Network'}}"))
    assert ua("train", "small.yaml", "--run-dir", "here").code == 0
    monkeypatch.setattr(users.Network.__init__, "__defaults__", (9,))
    told = ua("resume", "here", "training.total_timesteps=256")
    assert told.code == 2
    assert "does not fit the run's config.yaml" in told.err and "Traceback" not in told.err
    assert not Path("here/changes.jsonl").exists()


def test_the_same_from_python(stopped) -> None:
    result = uniarena.resume("here", ["learner.gamma=0.9"], quiet=True)
    assert result.env_steps == 128 and changes("here")[0]["key"] == "learner.gamma"
