"""The wheel carries what it promises, the extras add up, and every pin is exact."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = PROJECT["optional-dependencies"]
TOOLING = {"all", "dev", "docs"}
CLASHING = {"metaworld", "gymnax", "legacy-gym"}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [path] = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_carries_every_source_recipe_and_the_typing_mark(wheel: zipfile.ZipFile):
    files = set(wheel.namelist())
    sources = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src" / "uniarena").rglob("*.py")}
    recipes = {f"uniarena/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "recipes").rglob("*.yaml")}
    assert recipes and sources | recipes | {"uniarena/py.typed"} <= files


def test_the_wheel_carries_nothing_else(wheel: zipfile.ZipFile):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"uniarena", f"uniarena-{PROJECT['version']}.dist-info"}


def test_all_is_every_extra_that_does_not_clash():
    named = {extra for text in OPTIONAL["all"] for extra in Requirement(text).extras}
    assert named == OPTIONAL.keys() - TOOLING - CLASHING


def test_the_tests_know_every_extra():
    assert EXTRAS.keys() == OPTIONAL.keys() - TOOLING


def test_make_gives_each_clashing_extra_its_own_environment():
    [line] = re.findall(r"^CLASHES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(line.split()) == CLASHING


def test_every_pin_is_exact_and_of_no_particular_build():
    assert [f"{n}=={v}" for n, v in pins().items() if not re.fullmatch(r"[0-9][0-9a-z.]*", v)] == []


def test_everything_that_installs_together_is_pinned_within_its_bounds():
    wanted = [text for extra in OPTIONAL.keys() - CLASHING - {"all"} for text in OPTIONAL[extra]]
    pinned = pins()
    for requirement in map(Requirement, [*PROJECT["dependencies"], *wanted]):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None and requirement.specifier.contains(version), str(requirement)


def test_the_texts_that_name_the_version_agree():
    version = PROJECT["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()
