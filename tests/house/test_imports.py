"""What importing UniArena costs, and where the heavy or optional packages may be named."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "uniarena"
HEAVY = ("torch", "numpy", "gymnasium", "ray", "tensorboard")
# The packages that only extras bring.
OPTIONAL = [
    "ale_py",
    "array_record",
    "crc32c",
    "cv2",
    "dm_control",
    "envpool",
    "gym",
    "gymnax",
    "h5py",
    "jax",
    "metaworld",
    "minari",
    "minatar",
    "minigrid",
    "mlflow",
    "moviepy",
    "mpe2",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "optuna",
    "pettingzoo",
    "ray",
    "shimmy",
    "tensordict",
    "wandb",
]


def loaded_after(statement: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after the statement."""
    code = f"{statement}\nimport sys\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["uniarena", "uniarena.registry", "uniarena.config", "uniarena.cli"])
def test_importing_is_light(module: str):
    assert loaded_after(f"import {module}") == set()


def test_the_check_for_lightness_sees_what_is_heavy():
    assert "numpy" in loaded_after("import numpy")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports by its full name, at the top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(wanted: str) -> set[str]:
    """The source files that import a module or what is inside it."""
    return {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        for name in imports(path)
        if name == wanted or name.startswith(wanted + ".")
    }


def test_each_optional_package_is_imported_in_one_file():
    where = {package: sorted(importers(package)) for package in OPTIONAL}
    assert {package: files for package, files in where.items() if len(files) > 1} == {}


def test_torch_distributed_is_named_in_its_room_only():
    assert [f for f in sorted(importers("torch.distributed")) if not f.startswith("distributed/")] == []


def test_ray_is_named_in_ray_files_only():
    assert [f for f in sorted(importers("ray")) if Path(f).name != "ray.py"] == []


def test_nothing_unpickles():
    assert sorted(importers("pickle") | importers("dill") | importers("shelve")) == []
