"""Reading a config, also a wrong one, costs no heavy import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import uniarena

HEAVY = ("torch", "gymnasium", "numpy", "ray", "tensorboard", "pydantic", "rich", "typer")

GOOD = """
import sys
import uniarena
from uniarena.config import ConfigError, dump, load, recipes
text = dump(load(sys.argv[1], ["learner.gamma=0.98"]))
for bad in (["learner.type=pppo"], ["training.total_timesteps=many"], ["callbacks=[{typ: x}]"]):
    try:
        load(sys.argv[1], bad)
    except ConfigError as error:
        str(error)
    else:
        raise SystemExit(f"{bad} was accepted")
recipes()
"""


def run(code: str, *args: str) -> str:
    env = os.environ | {"PYTHONPATH": str(Path(uniarena.__file__).parent.parent)}
    command = [sys.executable, "-c", code, *args]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_config_and_its_errors_import_nothing_heavy() -> None:
    sample = Path(__file__).parent.parent / "samples" / "lunarlander_rnd_ppo.yaml"
    code = GOOD + f"print([name for name in {HEAVY} if name in sys.modules])"
    assert run(code, str(sample)).strip() == "[]"


def test_the_package_itself_imports_nothing_at_all() -> None:
    code = "import sys; before = set(sys.modules); import uniarena; dir(uniarena)\n"
    code += "print(sorted(m for m in set(sys.modules) - before if m.startswith('uniarena.')))"
    assert run(code).strip() == "[]"


def test_every_export_is_listed() -> None:
    assert set(uniarena.__all__) <= set(dir(uniarena))
    assert uniarena.ConfigError is uniarena.config.ConfigError
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = uniarena.nothing


def test_the_version_is_that_of_the_package() -> None:
    text = (Path(__file__).parent.parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{uniarena.__version__}"' in text
