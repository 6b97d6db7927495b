"""The registry: names, import paths, decorators and entry points; broken plug-ins are named, not fatal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import uniarena
from uniarena import registry
from uniarena.registry import BrokenPluginError, RegistryError, UnknownNameError


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", {kind: {} for kind in registry.KINDS})
    registry._entry_points.cache_clear()
    yield
    registry._entry_points.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def install(folder: Path, group: str, entry: str) -> None:
    """What pip leaves behind of a package that declares one entry point."""
    info = folder / "plugin_under_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-under-test\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")


def test_register_as_a_decorator_and_as_a_call() -> None:
    @uniarena.register("learner", "mine")
    class Mine:
        pass

    assert registry.lookup("learner", "mine") is Mine
    registry.register("callback", "lazy", "collections:OrderedDict")
    assert registry.lookup("callback", "lazy").__name__ == "OrderedDict"
    assert "mine" in registry.names("learner")
    assert registry.known("learner", "mine")


def test_a_cell_run_twice_replaces_its_class() -> None:
    for _ in range(2):

        @registry.register("learner", "mine")
        class Mine:
            pass

    assert registry.lookup("learner", "mine") is Mine


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("learnr", "mine", "there is no kind 'learnr'"),
        ("learner", "My Learner", "cannot name a learner"),
        ("learner", "ppo", "is taken by uniarena.learners"),
    ],
)
def test_bad_registrations_are_refused(kind: str, name: str, message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        registry.register(kind, name, object)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="there is no learner 'pppo'; known: a2c, ") as caught:
        registry.lookup("learner", "pppo")
    assert caught.value.hint == "did you mean 'ppo'?"


def test_a_dotted_name_is_answered_with_the_colon() -> None:
    with pytest.raises(UnknownNameError) as caught:
        registry.lookup("learner", "package.module.Thing")
    assert "package.module:Thing" in caught.value.hint


def test_import_paths(folder: Path) -> None:
    (folder / "my_parts.py").write_text("class Outer:\n    class Inner: pass\n")
    assert registry.lookup("network", "my_parts:Outer").__name__ == "Outer"
    assert registry.lookup("network", "my_parts:Outer.Inner").__name__ == "Inner"
    with pytest.raises(UnknownNameError, match="my_parts has no 'Outr'") as unknown:
        registry.lookup("network", "my_parts:Outr")
    assert unknown.value.hint == "did you mean my_parts:Outer?"
    with pytest.raises(UnknownNameError, match="there is no module 'no_such_module'") as unknown:
        registry.lookup("network", "no_such_module:X")
    assert "run from the folder" in unknown.value.hint
    with pytest.raises(UnknownNameError, match="not an import path"):
        registry.lookup("network", "my_parts:")


def test_a_module_that_fails_on_import_is_named_with_the_reason(folder: Path) -> None:
    (folder / "broken_part.py").write_text("raise RuntimeError('no licence')")
    with pytest.raises(BrokenPluginError, match="broken_part fails on import: RuntimeError: no licence"):
        registry.lookup("env", "broken_part:Env")
    (folder / "needy_part.py").write_text("import some_absent_package")
    with pytest.raises(BrokenPluginError, match="needy_part needs 'some_absent_package'") as caught:
        registry.lookup("env", "needy_part:Env")
    assert caught.value.hint == "pip install some_absent_package"


def test_entry_points_are_found_by_name(folder: Path) -> None:
    (folder / "plugin_module.py").write_text("class Found: pass\n")
    install(folder, "uniarena.learners", "found = plugin_module:Found")
    assert "found" in registry.names("learner")
    assert "plugin_module" not in sys.modules
    assert registry.lookup("learner", "found").__name__ == "Found"
    assert (
        registry.Plugin("learner", "found", "plugin_module:Found", "plugin-under-test") in registry.plugins()
    )


def test_a_broken_plug_in_is_named_and_hurts_nobody_else(folder: Path) -> None:
    (folder / "plugin_module.py").write_text("import absent_dependency\n")
    install(folder, "uniarena.bonuses", "odd = plugin_module:Odd")
    assert registry.names("bonus") == ["count", "icm", "information_gain", "odd", "rnd"]
    with pytest.raises(
        BrokenPluginError, match=r"'odd' of plug-in plugin-under-test does not import"
    ) as caught:
        registry.lookup("bonus", "odd")
    assert "plugin-under-test" in caught.value.hint
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_every_kind_has_an_entry_point_group() -> None:
    assert registry.GROUPS["learner"] == "uniarena.learners"
    assert registry.GROUPS["bonus"] == "uniarena.bonuses"
    assert set(registry.GROUPS) == set(registry.KINDS)


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, table in registry.BUILT_IN.items() for n in table])
def test_every_built_in_name_leads_somewhere(kind: str, name: str) -> None:
    assert callable(registry.lookup(kind, name))
