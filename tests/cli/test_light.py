"""Help, lists and bad configs are answered without torch: in a fresh process, all of them one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

COMMANDS = [
    (0, ["--help"]),
    (0, ["train", "--help"]),
    (0, ["verify", "--help"]),
    (0, ["diff", "--help"]),
    (0, ["doctor", "--help"]),
    (0, ["check-config", "--help"]),
    (2, ["check-config", "broken.yaml"]),
    (0, ["list"]),
    (0, ["list", "--json"]),
    (0, ["list", "learners", "--json"]),
    (0, ["list", "recipes", "--json"]),
    (0, ["list", "envs"]),
    (2, ["list", "nonsense"]),
    (2, ["train"]),
    (2, ["train", "no-such-file.yaml"]),
    (2, ["train", "broken.yaml"]),
    (2, ["train", "section.yaml"]),
    (2, ["train", "type.yaml"]),
    (2, ["train", "ppo/cartpole", "learner.type=pbo"]),
    (2, ["train", "ppo/cartpole", "training.total_timestep=1"]),
    (2, ["train", "ppo/cartpole", "environment.wrappers=[nope]"]),
]


def test_none_of_them_loads_torch(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("learner: {type: ppo\n")
    (tmp_path / "section.yaml").write_text("environment: CartPole-v1\nlearner: ppo\nnonsense: {a: 1}\n")
    (tmp_path / "type.yaml").write_text("environment: CartPole-v1\nlearner: {type: nonsense}\n")
    program = f"""
import sys
from uniarena.cli import invoke
for code, arguments in {COMMANDS!r}:
    given = invoke(arguments)
    assert given == code, (arguments, given)
    assert "torch" not in sys.modules, arguments
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("runs")) == []


def test_the_module_and_the_console_script_are_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "uniarena", "list", "learners"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert {"a2c", "ppo"} <= set(done.stdout.split())
    assert done.stderr == ""


@pytest.mark.slow
def test_a_run_loads_no_compiler(tmp_path: Path) -> None:
    """torch's own is seconds and some 70 MB, and comes with the first call of most methods of its optimisers."""
    program = f"""
import sys, uniarena
config = {{"environment": "CartPole-v1", "learner": {{"type": "ppo", "n_steps": 64}}, "training": {{
    "total_timesteps": 128, "n_eval_episodes": 1}}}}
uniarena.train(config, run_dir={str(tmp_path / "run")!r}, quiet=True)
assert not [name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules]
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
