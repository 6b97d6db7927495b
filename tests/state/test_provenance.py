"""A run's folder is its own, and the record says where the run came from without giving secrets away."""

import json
import logging
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from uniarena import provenance
from uniarena.config import ConfigError
from uniarena.provenance import (
    create_run_folder,
    discard_if_empty,
    redact,
    setup_logging,
    write_provenance,
)

# Put together here, so that no scanner takes this file for a leak.
TOKEN = "gh" + "p_" + "a1B2" * 9
KEY = "AK" + "IA" + "ABCD" * 4


# -- folders ---------------------------------------------------------------------------------------
def test_folders_of_the_same_second_differ(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: create_run_folder(tmp_path, "PPO CartPole/v1", 3), range(40)))
    assert len(set(folders)) == 40 and all(
        folder.is_dir() and folder.parent == tmp_path for folder in folders
    )
    assert re.fullmatch(r"PPO-CartPole-v1-s3-\d{8}-\d{6}-[0-9a-f]{6}", folders[0].name)


def test_a_random_suffix_that_is_taken_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = create_run_folder(tmp_path, "a", 0)
    suffixes = iter([first.name[-6:], "0ther1"])
    monkeypatch.setattr(provenance.secrets, "token_hex", lambda n: next(suffixes))

    class Clock(provenance.datetime):
        @classmethod
        def now(cls, tz: object = None) -> "Clock":
            return cls.strptime(first.name.split("-", 2)[2][:15], "%Y%m%d-%H%M%S")

    monkeypatch.setattr(provenance, "datetime", Clock)
    assert create_run_folder(tmp_path, "a", 0).name.endswith("0ther1")


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../etc", "etc"),
        (".hidden", "hidden"),
        ("", "run"),
        ("///", "run"),
        ("实验 一", "实验-一"),
        ("x" * 300, "x" * 60),
    ],
)
def test_names_become_safe(name: str, safe: str, tmp_path: Path) -> None:
    folder = create_run_folder(tmp_path, name, 0)
    assert folder.parent == tmp_path and folder.name.startswith(f"{safe}-s0-")


def test_run_dir_is_the_folder_itself_and_must_be_free(tmp_path: Path) -> None:
    assert create_run_folder(tmp_path, "a", 0, tmp_path / "x" / "my run") == tmp_path / "x" / "my run"
    (tmp_path / "empty").mkdir()
    assert create_run_folder(tmp_path, "a", 0, str(tmp_path / "empty")) == tmp_path / "empty"
    (tmp_path / "empty" / "file").touch()
    with pytest.raises(ConfigError, match=r"not empty") as caught:
        create_run_folder(tmp_path, "a", 0, tmp_path / "empty")
    assert "uniarena resume" in str(caught.value) and "experiment.run_dir" in str(caught.value)
    (tmp_path / "empty" / "config.yaml").touch()  # of a run without a checkpoint, which cannot be resumed
    with pytest.raises(ConfigError, match="begin it again with --resume-if-exists"):
        create_run_folder(tmp_path, "a", 0, tmp_path / "empty")
    with pytest.raises(ConfigError, match="cannot be made"):
        create_run_folder(tmp_path, "a", 0, tmp_path / "empty" / "file")


def test_only_a_folder_with_nothing_but_its_log_is_discarded(tmp_path: Path) -> None:
    folder = create_run_folder(tmp_path, "a", 0)
    (folder / "run.log").write_text("x")
    discard_if_empty(folder)
    assert not folder.exists()
    folder = create_run_folder(tmp_path, "a", 0)
    (folder / "config.yaml").touch()
    discard_if_empty(folder)
    assert folder.exists()


# -- the record ------------------------------------------------------------------------------------
@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "my code"
    root.mkdir()
    monkeypatch.chdir(root)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))

    def git(*arguments: str) -> str:
        author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        return subprocess.run(
            ["git", *author, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q", "-b", "trunk")
    (root / "train.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-qm", "first")
    git("remote", "add", "origin", f"https://me:{TOKEN}@example.com/code.git")
    return root


def record_of(root: Path) -> tuple[dict, Path]:
    folder = create_run_folder(root / "runs", "a", 5)
    write_provenance(folder, seed=5, command=["uniarena", "train", "my file.yaml", "seed=5"])
    return json.loads((folder / "provenance.json").read_text()), folder


def test_a_clean_tree_is_recorded_with_its_commit(repository: Path) -> None:
    record, folder = record_of(repository)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert record["git"]["commit"] == head and record["git"]["branch"] == "trunk"
    assert record["git"]["dirty"] is False and not (folder / "git.diff").exists()
    assert record["git"]["remote"] == "https://<redacted>@example.com/code.git"
    assert record["command"] == "uniarena train 'my file.yaml' seed=5" and record["seed"] == 5
    assert record["run"] == folder.name and record["resumed"] == []
    assert record["packages"]["torch"] and record["packages"]["numpy"]
    assert (
        record["hardware"]["cores"] >= 1 and record["hardware"]["cpu"] and record["python"].startswith("3.")
    )


def test_the_diff_rebuilds_the_working_tree(repository: Path) -> None:
    (repository / "train.py").write_text("x = 2\n")
    (repository / "net.py").write_text("class Net: ...")  # untracked, no newline at the end
    (repository / "data.bin").write_bytes(b"\0" * 10)
    record, folder = record_of(repository)
    assert record["git"]["dirty"] is True and record["git"]["untracked"] == ["data.bin", "net.py"]
    diff = (folder / record["git"]["diff"]).read_text()
    for command in (["stash", "-q"], ["clean", "-qf"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *command], check=True)
    subprocess.run(["git", "apply", "-"], input=diff, text=True, check=True)
    assert (repository / "train.py").read_text() == "x = 2\n"
    assert (repository / "net.py").read_text() == "class Net: ..."


def test_the_run_folders_are_no_part_of_the_diff(repository: Path) -> None:
    record_of(repository)
    record, _ = record_of(repository)
    assert record["git"]["dirty"] is False and record["git"]["untracked"] == []


def test_secrets_in_the_tree_stay_out_of_the_diff(repository: Path) -> None:
    source = f"from os import environ\ntoken = next(tokens)\npassword = 'hunter2!'\nkey = {KEY!r}\n"
    (repository / "train.py").write_text(source)
    (repository / "config.yaml").write_text("wandb_api_key: abc123\nmax_tokens: 5\n")
    _, folder = record_of(repository)
    diff = (folder / "git.diff").read_text()
    assert "token = next(tokens)" in diff and "max_tokens: 5" in diff
    assert "hunter2" not in diff and KEY not in diff and "abc123" not in diff


def test_a_resumed_run_adds_to_the_record(repository: Path) -> None:
    _, folder = record_of(repository)
    (repository / "train.py").write_text("x = 3\n")
    write_provenance(folder, seed=5, command=["uniarena", "resume", "x"])
    record = json.loads((folder / "provenance.json").read_text())
    assert record["command"].startswith("uniarena train") and record["git"]["dirty"] is False
    assert record["resumed"][0]["command"] == "uniarena resume x"
    assert "x = 3" in (folder / record["resumed"][0]["git"]["diff"]).read_text()


def test_without_a_repository_or_git_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert record_of(tmp_path)[0]["git"] == {"commit": None, "why": "not a git repository"}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert record_of(tmp_path)[0]["git"] == {"commit": None, "why": "git is not installed"}


def test_a_repository_without_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    (tmp_path / "a.py").write_text("x\n")
    record, _ = record_of(tmp_path)
    assert record["git"]["commit"] is None and record["git"]["dirty"] is True


def test_git_that_hangs_or_fails_does_not_stop_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*args: object, **kwargs: object) -> None:
        raise subprocess.TimeoutExpired("git", 20)

    monkeypatch.setattr(provenance.subprocess, "run", hang)
    assert record_of(tmp_path)[0]["git"]["commit"] is None


# -- secrets ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        "api_key: abc",
        "WANDB_API_KEY=abc",
        "env.kwargs.password=abc",
        '{"token": "abc"}',
        "--hub-token=abc",
        "https://user:abc@host/x",
        "secret = 'abc'",
        f"pushing with {TOKEN}",
        f"{KEY} in use",
    ],
)
def test_secrets_are_blanked(text: str) -> None:
    found = redact(text)
    assert "<redacted>" in found and "abc" not in found and TOKEN not in found and KEY not in found


@pytest.mark.parametrize(
    "text",
    [
        "learner.max_tokens=5",
        "tokenizer: hash",
        "https://host/path",
        "author: me",
        "passwordless login",
        "monkey: 3",
        "git@example.com:code.git",
        "a" * 40,
        "seed=3 keys=4",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text


def test_values_of_secret_environment_variables_are_blanked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct horse battery")
    assert redact("said correct horse battery aloud") == "said <redacted> aloud"


def test_arguments_that_follow_a_secret_flag_are_blanked() -> None:
    found = provenance._redact_arguments(["run", "--password", "hunter2", "--seed", "3", "--token", "--flag"])
    assert found == ["run", "--password", "<redacted>", "--seed", "3", "--token", "--flag"]


# -- the log ---------------------------------------------------------------------------------------
def test_messages_reach_the_log_file_and_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    close = setup_logging(tmp_path)
    logging.getLogger("uniarena.part").info("started 实验")
    logging.getLogger("uniarena.part").debug("detail")
    logging.getLogger("uniarena").warning("token='abcdef'")
    close()
    logging.getLogger("uniarena").warning("after")
    text = (tmp_path / "run.log").read_text(encoding="utf-8")
    assert "INFO uniarena.part: started 实验" in text and "abcdef" not in text
    assert "detail" not in text and "after" not in text
    shown = capsys.readouterr().err
    assert shown.startswith("started 实验\nwarning: token='<redacted>'\n")


def test_quiet_shows_warnings_only_and_two_runs_do_not_mix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        close = setup_logging(tmp_path / name, quiet=True)
        logging.getLogger("uniarena").info("hello from %s", name)
        close()
    assert capsys.readouterr().err == ""
    assert "from b" not in (tmp_path / "a" / "run.log").read_text()
    assert "from a" not in (tmp_path / "b" / "run.log").read_text()


def test_a_program_that_configured_logging_keeps_its_own_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    close = setup_logging(tmp_path)
    logging.getLogger("uniarena").info("hello")
    close()
    assert capsys.readouterr().err == "" and "hello" in caplog.text


def test_importing_provenance_is_light() -> None:
    heavy = ("torch", "numpy", "gymnasium")
    code = f"import sys, uniarena.provenance; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path("src"))
    assert done.stdout.strip() == "[]", done.stderr


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, away = tmp_path / "run", tmp_path / "away"
    run.mkdir(), away.mkdir()
    monkeypatch.chdir(away)
    away.rmdir()
    record = write_provenance(run, seed=0, command=["uniarena"])
    assert record["git"] == {"commit": None, "why": "the working directory is gone"}
    assert provenance.read_record(run)["git"] == record["git"]
