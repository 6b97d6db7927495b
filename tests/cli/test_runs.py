"""What the commands do with a run: folders, merging, seeds, evaluation, resuming, starting from another."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
import yaml

import uniarena
from uniarena import checkpoint
from uniarena.trainer.loggers.jsonl import read_rows

US = "tests.cli.users"


def rows(run: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


def checkpoints(run: str | Path) -> set[str]:
    return {path.name for path in (Path(run) / "checkpoints").iterdir()}


def weights(run: str | Path) -> dict[str, torch.Tensor]:
    return uniarena.Agent.load(run, trust=True).model.state_dict()


# -- folders and configs -------------------------------------------------------------------------------------------
def test_a_run_folder_holds_all_that_is_promised(ua) -> None:
    run = Path(ua("train", "small.yaml", "--json").json["run"])
    assert run.parent == Path("runs")
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "provenance.json", "metrics.jsonl", "events", "checkpoints", "run.log"} <= names
    assert checkpoints(run) == {"64", "128", "best"}
    assert {path.suffix for path in (run / "checkpoints" / "128").iterdir()} == {".json", ".safetensors"}
    # one row an iteration, whatever the intervals
    assert [row["env_steps"] for row in rows(run)] == [32, 64, 96, 128]
    record = json.loads((run / "provenance.json").read_text())
    assert record["seed"] == 0 and record["git"] and record["packages"]["torch"] and record["hardware"]
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["learner"]["n_steps"] == 16 and config["training"]["total_timesteps"] == 128


def test_the_last_evaluation_is_told_once_and_kept_in_the_log(ua) -> None:
    told = ua("train", "small.yaml", "--run-dir", "here")
    last = "deterministic, 2 episodes: return"
    assert told.out.count(last) == 1 and told.err.count(f" 128 env steps, {last}") == 0
    assert told.err.count(f" 64 env steps, {last}") == 1  # those before are told as they come
    assert told.err.count(" 128 env steps, stochastic, 2 episodes: return") == 1
    assert Path("here/run.log").read_text().count(f" 128 env steps, {last}") == 1


def test_a_video_is_suggested_only_where_one_can_be_made(ua, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--video" in ua("train", "small.yaml").out
    assert "--video" not in ua("train", "small.yaml", f"environment.id={US}:Walk").out  # it cannot draw
    monkeypatch.setattr("uniarena.envs.drawing.find_spec", lambda name: None)
    told = ua("train", "small.yaml")
    assert "--video" not in told.out and "uniarena eval " in told.out


def test_two_runs_never_share_a_folder_and_a_project_groups_them(ua) -> None:
    first, second = (
        Path(ua("train", "small.yaml", "experiment.project=My Arena", "--json").json["run"]) for _ in range(2)
    )
    assert first != second
    assert first.parent == second.parent == Path("runs/My-Arena")


def test_run_dir_is_the_folder_itself(ua) -> None:
    assert ua("train", "small.yaml", "--run-dir", "a b/c").code == 0
    assert Path("a b/c/config.yaml").exists()
    assert ua("train", "small.yaml", "experiment.run_dir=d").code == 0
    assert Path("d/config.yaml").exists()


def test_files_merge_left_to_right_json_like_yaml_and_overrides_last(ua) -> None:
    Path("more.json").write_text(
        json.dumps({"learner": {"lr": 2e-3, "gamma": 0.9}, "experiment": {"seed": 5}})
    )
    told = ua("train", "small.yaml", "more.json", "learner.gamma=0.8", "--print-config")
    assert told.code == 0
    resolved = yaml.safe_load(told.out)
    assert resolved["learner"]["learning_rate"] == 2e-3  # canonical names only
    assert (resolved["learner"]["n_steps"], resolved["learner"]["gamma"]) == (16, 0.8)
    assert resolved["experiment"]["seed"] == 5
    assert "lr:" not in told.out
    Path("resolved.yaml").write_text(told.out)
    assert ua("train", "resolved.yaml", "--print-config").out == told.out
    assert ua("train", "resolved.yaml", "--print-config", "--json").json == resolved
    assert not Path("runs").exists()


def test_print_config_checks_the_components_too(ua) -> None:
    told = ua("train", "small.yaml", "agent.policy.hiden=3", "--print-config")
    assert told.code == 2 and "agent.policy.hiden" in told.err and told.out == ""


# -- seeds ---------------------------------------------------------------------------------------------------------
def test_seeds_make_a_folder_each_and_one_summary(ua) -> None:
    told = ua("train", "small.yaml", "--seeds", "2", "experiment.seed=100", "--run-dir", "many", "--json")
    assert told.code == 0
    answer = told.json
    assert json.loads(Path("many/summary.json").read_text()) == answer
    assert [(run["seed"], run["run"]) for run in answer["runs"]] == [
        (100, "many/seed-100"),
        (101, "many/seed-101"),
    ]
    values = [run["eval"]["return_mean"] for run in answer["runs"]]
    summary = answer["summary"]
    assert summary["values"] == values
    assert summary["mean"] == pytest.approx(sum(values) / 2)
    low, high = summary["interval_95"]
    assert low <= summary["mean"] <= high
    assert yaml.safe_load(Path("many/seed-101/config.yaml").read_text())["experiment"]["seed"] == 101
    assert ua("train", "small.yaml", "experiment.seed=101", "--json").json["eval"]["return_mean"] == values[1]
    assert "name one of them, such as many/seed-100" in ua("eval", "many").err


def test_a_seed_that_fails_does_not_end_the_others(ua) -> None:
    from tests.cli.users import FailsLate

    FailsLate.episodes = 0
    told = ua(
        "train",
        "small.yaml",
        f"environment.id={US}:FailsLate",
        "environment.num_envs=1",
        "--seeds",
        "3",
        "--run-dir",
        "many",
    )
    assert told.code == 1
    summary = json.loads(Path("many/summary.json").read_text())
    assert len(summary["runs"]) + len(summary["failures"]) == 3 and summary["failures"] and summary["runs"]
    assert "motor 3 is stuck" in summary["failures"][0]["error"]
    seed = summary["failures"][0]["seed"]
    assert "Traceback" in Path(f"many/seed-{seed}/run.log").read_text()


def test_ctrl_c_leaves_out_the_remaining_seeds(ua) -> None:
    told = ua("train", "small.yaml", f"callbacks=['{US}:CtrlC']", "--seeds", "3", "--run-dir", "many")
    assert told.code == 130
    assert {path.name for path in Path("many").iterdir()} == {"seed-0", "summary.json", "seeds.json"}
    assert "seed 0: interrupted after 64 env steps" in told.out
    assert ua("resume", "many/seed-0").code == 0


# -- evaluation ----------------------------------------------------------------------------------------------------
def test_eval_takes_a_run_its_best_or_any_checkpoint(ua) -> None:
    ua("train", "small.yaml", "--run-dir", "here")
    by_run = ua("eval", "here", "--episodes", "4", "--json").json
    assert ua("eval", "here/checkpoints/best", "--episodes", "4", "--json").json == by_run
    assert ua("eval", "here/checkpoints/64", "--episodes", "4").code == 0
    assert ua("eval", "here", "--episodes", "4", "--seed", "7", "--json").json != by_run
    text = ua("eval", "here", "--episodes", "4", "--stochastic").out
    assert "stochastic, 4 episodes" in text


def test_eval_records_videos_where_pillow_is_all_there_is(ua, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)  # as if there were no encoder
    ua("train", "small.yaml", "--run-dir", "here")
    plain = ua("eval", "here", "--episodes", "2", "--json").json
    told = ua("eval", "here/checkpoints/best", "--episodes", "2", "--video", "--json")
    assert told.code == 0, told.err
    assert told.json["eval"] == plain["eval"]
    files = [Path(file) for file in told.json["videos"]]
    assert {file.parent for file in files} == {Path("here/videos")} and len(files) == 2
    from PIL import Image

    with Image.open(files[0]) as picture:
        assert picture.n_frames > 5 and picture.size == (600, 400)


def test_a_video_of_what_gives_no_pictures_is_refused(ua) -> None:
    ua("train", "small.yaml", f"environment.id={US}:Walk", "--run-dir", "here")
    told = ua("eval", "here", "--trust", "--video")
    assert told.code == 2
    assert "gives no picture" in told.err


@pytest.mark.parametrize(
    "asks", ["environment.wrappers=[record_video]", "callbacks=[{type: video, every_env_steps: 64}]"]
)
def test_videos_of_what_gives_no_pictures_are_refused_before_training(ua, asks: str) -> None:
    told = ua("train", "small.yaml", f"environment.id={US}:Walk", asks, "--run-dir", "here")
    assert told.code == 2 and "gives no picture to record" in told.err
    assert not Path("here").exists()


def test_videos_of_a_run_go_into_its_folder(ua) -> None:
    told = ua(
        "train",
        "small.yaml",
        "environment.wrappers=[{type: record_video, format: gif, max_videos: 1}]",
        "--run-dir",
        "here",
    )
    assert told.code == 0, told.err
    assert list(Path("here/videos").glob("*.gif"))
    assert not Path("videos").exists()


def test_an_agent_saved_alone_says_how_to_use_it(ua) -> None:
    env = uniarena.make_env("CartPole-v1")
    uniarena.Agent.assemble(env).save("alone")
    told = ua("eval", "alone")
    assert told.code == 2 and "uniarena.Agent.load" in told.err


# -- trust ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "override",
    [f"environment.id={US}:Walk", f"agent.policy.network={US}:Network"],
    ids=["environment", "network"],
)
def test_only_a_trusted_checkpoint_may_import_what_it_names(ua, override: str) -> None:
    small = Path("small.yaml")
    small.write_text(small.read_text().replace("agent: {policy: {hidden_sizes: [8]}}\n", ""))
    told = ua("train", "small.yaml", override, f"callbacks=['{US}:CtrlC']", "--run-dir", "here")
    assert told.code == 130  # training itself needs no trust
    told = ua("resume", "here")
    assert told.code == 0, told.err  # nor does going on with a run of one's own
    assert "uniarena eval here --trust" in told.out
    told = ua("eval", "here")
    assert told.code == 2 and f"would import '{US}:" in told.err and "--trust" in told.err
    assert ua("eval", "here", "--episodes", "1", "--trust").code == 0


# -- resuming ------------------------------------------------------------------------------------------------------
def test_resuming_gives_what_an_uninterrupted_run_gives(ua) -> None:
    ua("train", "small.yaml", f"callbacks=['{US}:CtrlC']", "--run-dir", "stopped")
    assert ua("resume", "stopped").code == 0
    ua("train", "small.yaml", "--run-dir", "straight")
    ours, theirs = weights("stopped/checkpoints/128"), weights("straight/checkpoints/128")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [row["env_steps"] for row in rows("stopped")] == [32, 64, 96, 128]
    assert len(json.loads(Path("stopped/provenance.json").read_text())["resumed"]) == 1


def test_one_checkpoint_is_not_resumed_but_its_run(ua) -> None:
    ua("train", "small.yaml", "--run-dir", "here")
    told = ua("resume", "here/checkpoints/64")
    assert told.code == 2 and told.err.rstrip().endswith("here")
    Path("empty").mkdir()
    assert "holds no config.yaml" in ua("resume", "empty").err


def test_a_config_that_no_longer_fits_the_checkpoint_is_told(ua) -> None:
    ua("train", "small.yaml", f"callbacks=['{US}:CtrlC']", "--run-dir", "here")
    config = Path("here/config.yaml")
    config.write_text(config.read_text().replace("[8]", "[9]"))
    told = ua("resume", "here")
    assert told.code == 2 and "Traceback" not in told.err
    assert "here/config.yaml:" in told.err and "[8] → [9] cannot be changed" in told.err


def test_secrets_are_not_saved_and_are_given_again(ua) -> None:
    secret = "environment.kwargs.api_key=open sesame 123"
    told = ua(
        "train",
        "small.yaml",
        f"environment.id={US}:Locked",
        secret,
        f"callbacks=['{US}:CtrlC']",
        "--run-dir",
        "here",
    )
    assert told.code == 130, told.err
    for file in Path("here").rglob("*"):
        assert file.is_dir() or b"open sesame 123" not in file.read_bytes(), file
    told = ua("resume", "here")
    assert told.code == 2
    assert "here/config.yaml:" in told.err and "environment.kwargs.api_key=…" in told.err
    assert ua("resume", "here", secret).code == 0
    assert ua("eval", "here", "--trust").code == 2
    assert ua("eval", "here", "--trust", "--episodes", "1", secret).code == 0


# -- keys of training and agent ------------------------------------------------------------------------------------
def test_a_run_starts_from_the_networks_and_statistics_of_another(ua) -> None:
    normalised = "environment.wrappers=[normalize_observation, normalize_reward]"
    assert ua("train", "small.yaml", normalised, "--run-dir", "first").code == 0
    frozen = "learner.learning_rate=1e-12"
    told = ua(
        "train",
        "small.yaml",
        normalised,
        "agent.init_from=first/checkpoints/128",
        frozen,
        "training.total_timesteps=32",
        "--run-dir",
        "second",
    )
    assert told.code == 0, told.err
    first, second = weights("first/checkpoints/128"), weights("second/checkpoints/32")
    parameters = [name for name in first if name.endswith(("weight", "bias"))]
    assert parameters and all(torch.allclose(first[name], second[name], atol=1e-9) for name in parameters)
    count = [name for name in first if name.endswith("normalizer.moments.count")]
    assert second[count[0]] == first[count[0]] + 32  # statistics go on from there
    assert rows("second")[0]["env_steps"] == 32  # counters start anew


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("agent.policy.hidden_sizes=[9]", "size mismatch"),
        ("environment.wrappers=[normalize_observation]", "Missing key"),
    ],
)
def test_a_run_that_does_not_fit_cannot_be_started_from(ua, override: str, word: str) -> None:
    ua("train", "small.yaml", "--run-dir", "first")
    told = ua("train", "small.yaml", "agent.init_from=first", override, "--run-dir", "second")
    assert told.code == 2
    assert "agent.init_from" in told.err and word in told.err and "agent.policy" in told.err
    assert not Path("second").exists()


def test_starting_from_a_run_imports_nothing_that_it_names(ua) -> None:
    ua("train", "small.yaml", f"environment.id={US}:Walk", "--run-dir", "first")
    meta = checkpoint.read_meta(Path("first/checkpoints/best"))
    assert f"{US}:Walk" in meta["config"]
    told = ua("train", "small.yaml", "environment.id=CartPole-v1", "agent.init_from=first")
    assert told.code == 2 and "size mismatch" in told.err  # only tensors are looked at


def test_threads_and_device_are_chosen_and_said(ua) -> None:
    before = torch.get_num_threads()
    try:
        assert (
            "on cpu, 2 torch threads"
            in ua("train", "small.yaml", "training.threads=2", "training.device=cpu").err
        )
        assert "on cpu, 1 torch thread" in ua("train", "small.yaml").err  # tiny networks  # case B93
    finally:
        torch.set_num_threads(before)


def test_a_run_that_is_out_of_time_ends_well_and_can_go_on(ua, monkeypatch: pytest.MonkeyPatch) -> None:
    from uniarena.run import surroundings

    class Now:
        """A timer that is over at once."""

        daemon = False

        def __init__(self, seconds: float, function: Any, args: tuple[Any, ...]) -> None:
            assert seconds == 90.0
            self.start, self.cancel = (lambda: function(*args)), (lambda: None)

    monkeypatch.setattr(surroundings.threading, "Timer", Now)
    told = ua("train", "small.yaml", "training.max_wall_time=1m30s", "--run-dir", "here")
    assert told.code == 0
    assert "training.max_wall_time is over" in told.out and "uniarena resume here" in told.out


def test_intervals_longer_than_the_run_are_announced(ua) -> None:
    told = ua(
        "train",
        "small.yaml",
        "training.eval_every_env_steps=1000",
        "training.save_interval=1000",
        "--run-dir",
        "here",
    )
    assert told.code == 0
    assert "training.eval_every_env_steps=1,000 is longer than the run (128)" in told.err
    assert "training.save_interval=1000 optimisation epochs is every 32,000 env steps" in told.err
    assert checkpoints("here") == {"128", "best"}  # a final evaluation and checkpoint always happen
    assert "eval/return_mean" in rows("here")[-1]


def test_inputs_too_large_for_a_network_are_announced(ua) -> None:  # case B26
    far = f"environment.id={US}:Far"
    assert "large inputs: observations (up to 1e+06)" in ua("train", "small.yaml", far).err
    assert (
        "large inputs"
        not in ua("train", "small.yaml", far, "environment.wrappers=[normalize_observation]").err
    )
    assert "large inputs" not in ua("train", "small.yaml").err


# -- failures while training ---------------------------------------------------------------------------------------
def test_an_environment_that_fails_shows_its_own_traceback_and_what_to_do(ua) -> None:
    told = ua("train", "small.yaml", f"environment.id={US}:FailsInStep", "--run-dir", "here")
    assert told.code == 1
    assert told.out == ""
    assert "RuntimeError: motor 3 is stuck" in told.err and "users.py" in told.err
    assert f"{Path('src') / 'uniarena'}" not in told.err.partition("Traceback")[2]  # not ours
    assert "in step() of environment 0" in told.err
    assert f"uniarena check-env {US}:FailsInStep" in told.err and "here/run.log" in told.err
    assert "trainer.py" in Path("here/run.log").read_text()  # the whole traceback


def test_a_failure_after_a_checkpoint_says_how_to_go_on(ua) -> None:
    from tests.cli.users import FailsLate

    FailsLate.episodes = 0
    told = ua(
        "train",
        "small.yaml",
        f"environment.id={US}:FailsLate",
        "training.total_timesteps=100000",
        "--run-dir",
        "here",
    )
    assert told.code == 1
    assert "uniarena resume here" in told.err


def test_other_failures_say_where_they_come_from(ua) -> None:
    told = ua("train", "small.yaml", f"environment.id={US}:ChangesShape")
    assert told.code == 1 and "uniarena check-env" in told.err and "shape (4,)" in told.err
    told = ua("train", "small.yaml", f"environment.id={US}:NaNReward")
    assert (
        told.code == 1 and "the reward of environment 0 was nan" in told.err and "Traceback" not in told.err
    )
    told = ua("train", "small.yaml", f"callbacks=['{US}:Fails']")
    assert told.code == 1 and "oops in my callback" in told.err and "check-env" not in told.err


# -- built-in callbacks --------------------------------------------------------------------------------------------
def test_what_a_config_says_of_a_built_in_callback_is_added_to_the_training_section(ua) -> None:
    told = ua(
        "train",
        "small.yaml",
        "callbacks=[{type: checkpoint, best: null}, {type: evaluate, also_stochastic: true}, {type: log, graph: true}]",
        "--run-dir",
        "here",
        "--json",
    )
    assert told.code == 0, told.err
    assert told.json["eval"]["episodes"] == 2  # training.n_eval_episodes
    assert [row["env_steps"] for row in rows("here") if "eval_stochastic/return_mean" in row] == [64, 128]
    assert checkpoints("here") == {"64", "128"}  # training.save_every_env_steps, and no best one


def test_built_in_callbacks_keep_their_order_wherever_they_are_written() -> None:
    from uniarena import assembly
    from uniarena.config import load
    from uniarena.trainer.callbacks import Checkpoint, EarlyStop, Evaluate, Log, Monitor, Progress

    exp = load("ppo/cartpole", ["callbacks=[checkpoint, log, {type: early_stop, threshold: 475}, evaluate]"])
    found = assembly.build_callbacks(
        exp, {"log": 256, "save": 512, "eval": 1024, "monitor": 4000}, quiet=True
    )
    assert [type(callback) for callback in found] == [
        *(Evaluate, Monitor, EarlyStop),
        *(Log, Progress, Checkpoint),
    ]
    assert found[0].cfg.every_env_steps == 1024 and found[-1].cfg.every_env_steps == 512
    loggers = load(
        "ppo/cartpole", ["experiment.loggers=[jsonl]", "callbacks=[{type: log, histograms: true}]"]
    )
    every = dict.fromkeys(("log", "save", "eval", "monitor"), 9)
    (log,) = [c for c in assembly.build_callbacks(loggers, every, True) if type(c) is Log]
    assert log.cfg.histograms and [dict(section) for section in log.cfg.loggers] == [{"type": "jsonl"}]


def test_the_start_of_a_run_counts_parameters_however_many_processes_sample(tmp_path: Path) -> None:
    config = {
        "environment": {"id": "CartPole-v1", "num_envs": 2},
        "agent": {"policy": {"hidden_sizes": [8]}},
        "learner": {"type": "ppo", "n_steps": 8, "batch_size": 16},
        "sampling": {"type": "pipelined", "producers": 2},
        "training": {"total_timesteps": 16, "n_eval_episodes": 1},
    }
    log = (uniarena.train(config, run_dir=tmp_path / "run", quiet=True).run / "run.log").read_text(
        encoding="utf-8"
    )
    assert "agent: ppo, 107 parameters (policy 58, value_net 49;" in log
    assert "sampling: in 2 processes" in log


class Wandering(gym.Wrapper):
    """Changes the working directory, as some simulators do, and never goes back."""

    def __init__(self, where: str, when: int) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.where, self.left = where, when

    def reset(self, **options: Any) -> Any:
        if self.left == 0:
            os.chdir(self.where)
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            os.chdir(self.where)
        return super().step(action)


@pytest.mark.parametrize("when", [0, 40])
def test_an_environment_that_changes_the_working_directory_takes_no_run_with_it(
    when: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    env = {"id": Wandering, "kwargs": {"where": str(tmp_path / "elsewhere"), "when": when}}
    learner = {"type": "ppo", "n_steps": 16, "batch_size": 16, "n_epochs": 1}
    training = {"total_timesteps": 96, "save_every_env_steps": 32, "n_eval_episodes": 1}
    uniarena.train({"environment": env, "learner": learner, "training": training}, run_dir="here", quiet=True)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    run = tmp_path / "here"
    assert {"config.yaml", "events", "metrics.jsonl", "provenance.json", "result.json"} <= {
        path.name for path in run.iterdir()
    }
    assert {"32", "64", "96"} <= {path.name for path in (run / "checkpoints").iterdir()}
    assert [row["env_steps"] for row in read_rows(run / "metrics.jsonl")] == [16, 32, 48, 64, 80, 96]
