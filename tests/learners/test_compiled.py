"""The compiled loss: the same numbers, one graph for minibatches of any size, and what happens where it cannot be."""

from __future__ import annotations

import logging
import shutil
from typing import Any

import pytest
import torch
from gymnasium import spaces

from tests.learners.fakes import MemoryModel, TinyModel, bandit, remembered
from tests.learners.test_policy_gradient import generator, ppo, same, weights
from tests.learners.test_with_networks import build, experience
from uniarena.config import ConfigError, parse
from uniarena.config.text import from_text
from uniarena.learners.on_policy.compiled import CompiledLoss, compiled, refuse_without_compiler
from uniarena.learners.on_policy.config import PolicyGradientConfig
from uniarena.learners.on_policy.presets import PPO, TRPO
from uniarena.optim import ScheduleConfig

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@pytest.fixture
def as_it_is(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """`torch.compile` that compiles nothing, and counts the calls of what it was given."""
    calls: list[int] = []

    def pretend(fn: Any, **options: Any) -> Any:
        assert options == {"fullgraph": True}

        def call(*args: Any) -> Any:
            calls.append(args[0].shape[0])
            return fn(*args)

        return call

    monkeypatch.setattr(torch, "compile", pretend)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    return calls


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kl_coef": 0.5, "ent_coef": 0.01, "clip": "dual", "ratio": "atom"},
        {"clip_range": ScheduleConfig(start=0.3, end=0.1), "value_clip": 0.2, "normalize_return": "popart"},
        {"advantage": "vtrace", "clip": "truncated", "ent_coef": "auto"},
    ],
)
def test_a_compiled_update_is_the_same(as_it_is: list[int], fields: dict[str, Any]) -> None:
    found = {}
    for compile in (False, True):
        learner, model = build(spaces.Discrete(3), batch_size=16, n_epochs=2, compile=compile, **fields)
        learner.set_progress(0.5)
        for k in range(2):
            learner.update(experience(model, 17, 2, k))
        found[compile] = weights(model)
        assert learner.state_dict().keys() == build(spaces.Discrete(3), **fields)[0].state_dict().keys()
    for name, tensor in found[False].items():
        torch.testing.assert_close(tensor, found[True][name], rtol=1e-4, atol=1e-6)
    assert len(as_it_is) > 6 and set(as_it_is) == {11, 12}


def test_a_minibatch_of_one_row_is_not_compiled(as_it_is: list[int]) -> None:
    model = TinyModel(3, 3)
    ppo(model, compile=True, batch_size=1, n_epochs=1).update(bandit(model, 3, 1, generator()))
    assert as_it_is == []


def test_memory_falls_back_and_says_so_once(as_it_is: list[int], caplog: pytest.LogCaptureFixture) -> None:
    model = MemoryModel(3, 3)
    learner = ppo(model, compile=True, batch_size=20, sequence_length=5)
    with caplog.at_level(logging.WARNING, "uniarena"):
        learner.update(remembered(model, 20, 3, generator()))
    said = [r.getMessage() for r in caplog.records if "compil" in r.getMessage()]
    assert said == [
        "learner.compile: the loss is computed without compiling: sequences of a policy with memory"
    ]
    assert as_it_is == []


def test_what_torch_does_not_take_falls_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(*_: Any) -> Any:
        raise torch._dynamo.exc.Unsupported("a strange network")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: refuses)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    found = {}
    for compile in (False, True):
        model = TinyModel(3, 3)
        with caplog.at_level(logging.WARNING, "uniarena"):
            ppo(model, compile=compile).update(bandit(model, 32, 4, generator()))
        found[compile] = weights(model)
    assert same(found[False], found[True])
    assert sum("a strange network" in r.getMessage() for r in caplog.records) == 1


def test_a_natural_step_is_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "uniarena"):
        build(spaces.Discrete(4), preset=TRPO, compile=True)
    assert "second derivatives" in caplog.text


def test_no_compiler_at_hand_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.delenv("CXX", raising=False)
    learner, _ = build(spaces.Discrete(4))
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler was found \(g\+\+, clang\+\+, cl\)") as caught:
        compiled(learner.loss)
    assert caught.value.path == "learner.compile"
    monkeypatch.setenv("CXX", "mine")
    with pytest.raises(ConfigError, match="mine"):
        refuse_without_compiler("cpu")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="Triton"):
        refuse_without_compiler("cuda")


@pytest.mark.parametrize(("text", "expected"), [("on", True), ("off", False), ("true", True)])
def test_on_and_off(text: str, expected: bool) -> None:
    section = from_text(f"compile: {text}", "run.yaml")
    assert parse(PolicyGradientConfig, section, "learner").compile is expected


@pytest.mark.slow
@needs_compiler
def test_one_graph_for_minibatches_of_any_size(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    found = {}
    for compile in (False, True):
        model = TinyModel(3, 3)
        learner = ppo(
            model, compile=compile, batch_size=16, n_epochs=2, clip_range=ScheduleConfig(start=0.3, end=0.1)
        )
        with caplog.at_level(logging.INFO, "uniarena"):
            for k, steps in enumerate((16, 9, 7)):  # minibatches of 16, of 9, of 14 rows
                learner.set_progress(k / 3)
                learner.update(bandit(model, steps, 2, generator(k)))
        found[compile] = weights(model)
    for name, tensor in found[False].items():
        torch.testing.assert_close(tensor, found[True][name], rtol=1e-4, atol=1e-5)
    assert isinstance(learner._step_loss, CompiledLoss) and learner._step_loss.seconds is not None
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert sum("the loss was compiled in" in r.getMessage() for r in caplog.records) == 1
    assert PPO.Config().compile is False
