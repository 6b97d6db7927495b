"""Every command on the pages is one that the program understands; links and pictures are there."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from uniarena.cli.commands import app
from uniarena.config import load, recipes

from .pages import PAGES, ROOT, blocks, spans


def commands(page: Path) -> list[str]:
    """Command lines of `uniarena` in blocks and in running text."""
    lines = [
        line.split(" #")[0].strip()
        for block in blocks(page, "bash", "text")
        for line in block.text.splitlines()
    ]
    return [text for text in [*lines, *spans(page)] if re.match(r"uniarena( |$)", text)]


SHOWN = sorted({(page.name, text) for page in PAGES for text in commands(page)})


def test_there_are_commands_to_check():
    assert len(SHOWN) > 20


@pytest.mark.parametrize(("page", "text"), SHOWN)
def test_a_command_parses(page: str, text: str):
    group = typer.main.get_command(app)
    words = shlex.split(text)[1:]
    bare = len(words) == 1  # a command called by its name in running text
    if words and words[0] != "--help":
        command = group.commands[words[0]]
        command.make_context(words[0], words[1:], resilient_parsing=bare)


@pytest.mark.parametrize(("page", "text"), [pair for pair in SHOWN if pair[1].startswith("uniarena train ")])
def test_the_overrides_of_a_training_command_are_keys(page: str, text: str):
    words = [word for word in shlex.split(text)[2:] if not word.startswith("-")]
    known = [word for word in words if word in recipes()] or ["ppo/cartpole"]
    values = [word for word in words if "=" in word and not word.startswith("callbacks.")]
    load(known, values)


def test_every_make_target_shown_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [
        line for page in PAGES for block in blocks(page, "bash", "text") for line in block.text.splitlines()
    ]
    lines += [span for page in PAGES for span in spans(page)]
    shown = {line.split()[1] for line in lines if re.match(r"make [a-z]", line)}
    assert shown and shown <= targets


def test_every_script_shown_exists():
    script = re.compile(r"python ((?:benchmarks|scripts|examples)/[\w/]+\.py)")
    shown = {path for page in PAGES for path in script.findall(page.read_text(encoding="utf-8"))}
    assert shown and [path for path in shown if not (ROOT / path).is_file()] == []


def test_every_test_shown_exists():
    shown = {
        path for page in PAGES for path in re.findall(r"tests/[\w/.]+", page.read_text(encoding="utf-8"))
    }
    assert shown and [path for path in shown if not (ROOT / path.rstrip(".")).exists()] == []


def test_the_picture_of_the_readme_is_made_by_the_command_beside_it():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [target] = re.findall(r"benchmarks/curve\.py .*?--output (\S+?)`", text)
    assert f"]({target})" in text and (ROOT / target).read_bytes().startswith(b"\x89PNG")
