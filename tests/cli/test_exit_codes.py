"""0 done, 1 the run failed, 2 bad input, 3 nothing to do, 130 interrupted and saved; one JSON object with --json."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Told

US = "tests.cli.users"


def test_train_gives_exactly_the_promised_object(ua) -> None:
    told: Told = ua("train", "small.yaml", "--json", "--run-dir", "here")
    assert told.code == 0
    answer = told.json
    assert list(answer) == ["run", "env_steps", "setup_s", "wall_s", "eval"]
    assert list(answer["eval"]) == ["episodes", "return_mean", "return_std", "return_iqm"]
    assert (answer["run"], answer["env_steps"], answer["eval"]["episodes"]) == ("here", 128, 2)
    assert answer["wall_s"] > 0 and answer["setup_s"] > 0
    assert "environment: CartPole-v1 x 2" in told.err  # all else is on stderr


def test_eval_gives_the_same_object(ua) -> None:
    ua("train", "small.yaml", "--run-dir", "here")
    answer = ua("eval", "here", "--episodes", "3", "--json").json
    assert list(answer) == ["eval"]
    assert list(answer["eval"]) == ["episodes", "return_mean", "return_std", "return_iqm"]


@pytest.mark.parametrize("vectorization", ["serial", "async"])
def test_what_environments_print_cannot_spoil_the_object(ua, vectorization: str) -> None:
    told = ua(
        "train",
        "small.yaml",
        f"environment.id={US}:Talks",
        f"environment.vectorization={vectorization}",
        "--json",
    )
    assert told.code == 0
    assert told.json["env_steps"] == 128
    assert "printed by step" in told.err and "written by step" in told.err


def test_without_json_the_answer_says_where_the_run_is_and_what_to_do_next(ua) -> None:
    told = ua("train", "small.yaml", "--run-dir", "here")
    assert told.code == 0
    for command in (
        "uniarena eval here",
        "uniarena eval here --video",
        "tensorboard --logdir here",
        "uniarena export here",
    ):
        assert command in told.out
    assert "128 env steps" in told.out and "deterministic, 2 episodes" in told.out
    assert "stochastic, 2 episodes" in told.err  # both modes are in the report  # case B58
    assert "env steps" not in ua("train", "small.yaml", "--quiet").err


def test_a_finished_run_has_nothing_to_do(ua) -> None:
    ua("train", "small.yaml", "--run-dir", "here")
    told = ua("resume", "here")
    assert told.code == 3
    assert "128 env steps already" in told.err and "training.total_timesteps" in told.err


def test_ctrl_c_finishes_the_iteration_saves_and_exits_with_130(ua) -> None:
    told = ua("train", "small.yaml", f"callbacks=['{US}:CtrlC']", "--run-dir", "here", "--json")
    assert told.code == 130
    assert told.json["env_steps"] == 64 and told.json["eval"] is None
    assert "uniarena resume here" in told.err
    told = ua("resume", "here")
    assert told.code == 0
    assert "finished: 128 env steps" in told.out


def test_a_second_ctrl_c_leaves_at_once_with_the_last_checkpoint(ua) -> None:
    told = ua("train", "small.yaml", f"callbacks=['{US}:Impatient']", "--run-dir", "here")
    assert told.code == 130
    assert "uniarena resume here" in told.err
    assert ua("resume", "here").code == 130  # the same callback again, but from the checkpoint at 64
    assert Path("here/checkpoints/64/manifest.json").exists()


def test_usage_errors_are_bad_input(ua) -> None:
    for arguments in (
        ["train"],
        ["train", "small.yaml", "--no-such"],
        ["nonsense"],
        ["eval", "here", "--episodes", "0"],
    ):
        told = ua(*arguments)
        assert told.code == 2
        assert told.err and not told.out
    told = ua("train", "learner.gamma=0.9")
    assert told.code == 2 and "uniarena train ppo/cartpole" in told.err


@pytest.mark.parametrize("command", ["eval", "resume", "export"])
def test_a_run_that_is_not_there_is_bad_input(ua, command: str) -> None:
    told = ua(command, "nowhere")
    assert told.code == 2
    assert told.err.startswith("nowhere: does not exist")


def test_a_failed_command_with_json_still_gives_one_object(ua) -> None:
    Path("bad.yaml").write_text("environment: CartPole-v1\nlearner: {type: ppo, gama: 0.9}\n")
    told = ua("train", "bad.yaml", "--json")
    assert told.code == 2
    assert told.json["exit_code"] == 2
    (fault,) = told.json["error"]["faults"]
    assert (fault["path"], fault["file"], fault["line"]) == ("learner.gama", "bad.yaml", 2)
    assert fault["fix"] == "write gamma"


def test_help_is_no_failure(ua) -> None:
    for arguments in (["--help"], ["train", "--help"], ["train", "--help", "--json"]):
        told = ua(*arguments)
        assert told.code == 0 and "Usage" in told.out


def test_numbers_that_json_lacks_become_null(ua) -> None:
    told = ua("train", "small.yaml", f"environment.id={US}:Walk", "--json")
    assert told.json["eval"]["return_mean"] == 10.0
    from uniarena.cli.answer import Answer

    Answer({"a": [float("nan"), 1.0], "b": float("inf")}, "").show(as_json=True)


@pytest.mark.parametrize("sampling", ["local", "pipelined"])
def test_an_error_whose_text_cannot_be_had_is_told_by_its_type(ua, sampling: str) -> None:
    told = ua(
        "train", "small.yaml", f"environment.id={US}:FailsWithoutWords", f"sampling.type={sampling}", "--json"
    )
    assert told.code == 1
    assert "Speechless" in told.err and "TypeError: no text" not in told.err
    assert "its text cannot be had: __str__ raised TypeError" in told.json["error"]["message"]
