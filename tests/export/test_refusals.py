"""What cannot be exported is refused with the way out."""

from pathlib import Path

import pytest

from tests.fakes.envs import CounterEnv
from uniarena import Agent, make_env
from uniarena.export import onnx


def test_missing_packages_are_named_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent.assemble(make_env(CounterEnv))
    monkeypatch.setattr(onnx.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(onnx.ExportError, match=r"onnx, onnxscript, onnxruntime.*uniarena\[onnx\]"):
        agent.export(tmp_path / "policy.onnx")


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'tensorrt' is unknown"):
        Agent.assemble(make_env(CounterEnv)).export(tmp_path / "policy.plan", format="tensorrt")
