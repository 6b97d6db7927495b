"""A config that cannot be used is answered on one screen, with the place and the fix; nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

US = "tests.cli.users"
BASE = "environment: {id: CartPole-v1}\nlearner: {type: ppo}\n"

# What is written → words that the answer must hold.
FAULTS: dict[str, tuple[str, list[str]]] = {
    "a list where a map is due": ("- a\n- b\n", ["bad.yaml:1", "expected a map of sections"]),
    "a list where a section is due": (
        "environment: CartPole-v1\nlearner:\n  - type: ppo\n",
        ["bad.yaml:2", "learner", "remove the dashes"],
    ),
    "broken YAML": ("learner: {type: ppo\n", ["bad.yaml", "not YAML"]),
    "an unknown section": (BASE + "trainings: {}\n", ["bad.yaml:3", "trainings", "training"]),
    "no learner": ("environment: CartPole-v1\n", ["learner.type", "add `learner: {type: ppo}`"]),
    "no environment": ("learner: ppo\n", ["environment.id", "CartPole-v1"]),
    "an unknown learner": ("environment: CartPole-v1\nlearner: pbo\n", ["bad.yaml:2", "'pbo'", "write ppo"]),
    "an unknown key of the learner": (
        "environment: CartPole-v1\nlearner:\n  type: ppo\n  gama: 0.9\n",
        ["bad.yaml:4", "learner.gama", "write gamma"],
    ),
    "an unknown key of the policy": (
        BASE + "agent:\n  policy: {hiden_sizes: [8]}\n",
        ["bad.yaml:4", "agent.policy.hiden_sizes", "write hidden_sizes"],
    ),
    "an unknown key of the value network": (
        BASE + "agent:\n  value: {activtion: relu}\n",
        ["bad.yaml:4", "agent.value.activtion", "write activation"],
    ),
    "an unknown key of a wrapper": (
        "environment:\n  id: CartPole-v1\n  wrappers:\n    - {type: frame_stack, colour: red}\nlearner: ppo\n",
        ["bad.yaml:4", "environment.wrappers.0.colour"],
    ),
    "an unknown key of a callback": (
        BASE + "callbacks:\n  - {type: early_stop, threshold: 1, pateince: 2}\n",
        ["bad.yaml:4", "callbacks.0.pateince", "write patience"],
    ),
    "an unknown key of the optimiser": (
        "environment: CartPole-v1\nlearner: {type: ppo, optimizer: {type: adam, weight: 1}}\n",
        ["bad.yaml:2", "learner.optimizer.weight"],
    ),
    "an unknown key of a bonus": (
        BASE + "agent: {intrinsic: {type: rnd, feature_dims: 3}}\n",
        ["bad.yaml:3", "agent.intrinsic.feature_dims", "write feature_dim"],
    ),
    "an unknown key of the explorer": (
        BASE + "agent: {explorer: {type: sample, sigma: 1}}\n",
        ["bad.yaml:3", "agent.explorer.sigma"],
    ),
    "an unknown key of the buffer": (
        BASE + "agent: {buffer: {type: rollout, blocks: 1}}\n",
        ["bad.yaml:3", "agent.buffer.blocks"],
    ),
    "an unknown key of a logger": (
        BASE + "experiment: {loggers: [{type: jsonl, files: a}]}\n",
        ["bad.yaml:3", "experiment.loggers.0.files", "write file"],
    ),
    "an unknown schedule": (
        "environment: CartPole-v1\nlearner: {type: ppo, clip_range: {type: lin, start: 0.1}}\n",
        ["bad.yaml:2", "learner.clip_range.type", "'linear'"],
    ),
    "a number that is none": (
        BASE + "training: {total_timesteps: many}\n",
        ["bad.yaml:3", "training.total_timesteps", "whole number", "'many'"],
    ),
    "a number out of bounds": (
        "environment: CartPole-v1\nlearner: {type: ppo, gamma: 1.5}\n",
        ["bad.yaml:2", "learner.gamma", "0 to 1"],
    ),
    "a word instead of a list": (
        BASE + "agent: {policy: {hidden_sizes: big}}\n",
        ["bad.yaml:3", "agent.policy.hidden_sizes", "'big'"],
    ),
    "an unknown activation": (
        BASE + "agent: {policy: {activation: swishy}}\n",
        ["bad.yaml:3", "agent.policy.activation", "tanh"],
    ),
    "observations that cannot be normalised": (
        "environment: {id: Taxi-v4, wrappers: [normalize_observation]}\nlearner: ppo\n",
        ["bad.yaml:1", "environment.wrappers", "remove normalize_observation"],
    ),
    "a squash without bounds": (
        f"environment: '{US}:Unbounded'\nlearner: ppo\nagent: {{policy: {{distribution: squashed_gaussian}}}}\n",
        ["bad.yaml:3", "agent.policy.distribution", "finite bounds"],
    ),
    "rescaling without bounds": (
        f"environment: {{id: '{US}:Unbounded', wrappers: [rescale_action]}}\nlearner: ppo\n",
        ["bad.yaml:1", "environment.wrappers", "finite bounds"],
    ),
    "state-dependent noise of discrete actions": (
        BASE + "agent: {policy: {gsde: true}}\n",
        ["bad.yaml:3", "agent.policy.gsde", "set gsde: false"],
    ),
    "a convolution without an image": (
        BASE + "agent: {policy: {network: nature_cnn}}\n",
        ["bad.yaml:3", "agent.policy.network", "use mlp"],
    ),
    "an unknown environment": (
        "environment: CartPool-v1\nlearner: ppo\n",
        ["bad.yaml:1", "environment.id", "CartPole-v1"],
    ),
    "an argument that it does not take": (
        "environment: {id: CartPole-v1, kwargs: {gravitas: 2}}\nlearner: ppo\n",
        ["bad.yaml:1", "environment.kwargs.gravitas", "takes no argument"],
    ),
    "a module that is not there": (
        "environment: no_such_module:Env\nlearner: ppo\n",
        ["bad.yaml:1", "no module 'no_such_module'"],
    ),
    "a class that is not there": (f"environment: '{US}:Wak'\nlearner: ppo\n", ["bad.yaml:1", "Walk"]),
    "an environment that fails when it is made": (
        f"environment: '{US}:FailsWhenMade'\nlearner: ppo\n",
        [
            "bad.yaml:1",
            "RuntimeError: the licence server is away",
            "users.py",
            f"uniarena check-env {US}:FailsWhenMade",
        ],
    ),
    "an environment that fails in its first reset": (
        f"environment: '{US}:FailsInReset'\nlearner: ppo\n",
        ["bad.yaml:1", "KeyError: 'scene'", "users.py", "uniarena check-env"],
    ),
    "a class without reset": (
        f"environment: '{US}:NoReset'\nlearner: ppo\n",
        ["bad.yaml:1", "has no reset; add to the class"],
    ),
    "a callback that needs an argument": (
        BASE + f"callbacks: ['{US}:NeedsArgument']\n",
        ["bad.yaml:3", "callbacks.0.type", "target", "Config"],
    ),
    "a device that is not here": (
        BASE + "training: {device: xpu}\n",
        ["bad.yaml:3", "training.device", "training.device=auto or cpu"],
    ),
    "a run to start from that is not there": (
        BASE + "agent: {init_from: nowhere}\n",
        ["bad.yaml:3", "agent.init_from", "nowhere"],
    ),
    "two names of one key": (
        "environment: CartPole-v1\nlearner: {type: ppo, learning_rate: 1e-3, optimizer: {lr: 1e-4}}\n",
        ["bad.yaml:2", "given twice", "keep one of the two"],
    ),
    "an agent and a learner that contradict": (
        "environment: CartPole-v1\nagent: PPO_Agent\nlearner: a2c\n",
        ["bad.yaml:3", "learner says a2c", "agent.type", "ppo"],
    ),
    "replay in the section for memory": (
        BASE + "agent: {memory: {capacity: 100}}\n",
        ["bad.yaml:3", "agent.memory.capacity", "agent.buffer"],
    ),
    "memory in the section for replay": (
        BASE + "agent: {buffer: {type: lstm}}\n",
        ["bad.yaml:3", "agent.buffer.type", "agent.memory"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_screen_with_place_and_fix(ua, fault: str) -> None:
    text, words = FAULTS[fault]
    Path("bad.yaml").write_text(text, encoding="utf-8")
    told = ua("train", "bad.yaml")
    assert told.code == 2, told.err
    assert told.out == ""
    assert "Traceback" not in told.err
    assert len(told.err.splitlines()) <= 15
    assert max(map(len, told.err.splitlines())) <= 250  # a line of the user's code may be quoted whole
    unwrapped = " ".join(told.err.split())
    for word in words:
        assert word in unwrapped, told.err
    assert not Path("runs").exists() or list(Path("runs").iterdir()) == []


def test_all_faults_are_told_at_once(ua) -> None:
    Path("bad.yaml").write_text(
        "environment: CartPole-v1\nlearner: {type: ppo, gama: 1}\nagent: {policy: {hiden: 1}}\n"
        "callbacks: [{type: log, a: 1}]\n"
    )
    told = ua("train", "bad.yaml")
    assert told.code == 2
    assert told.err.startswith("3 things are wrong in this config")
    assert [f"bad.yaml:{line}" in told.err for line in (2, 3, 4)] == [True] * 3


def test_an_override_that_is_wrong_is_named_as_it_was_typed(ua) -> None:
    told = ua("train", "small.yaml", "learner.gama=0.9")
    assert told.code == 2
    assert "command line: learner.gama=0.9" in told.err and "write gamma" in told.err


def test_a_missing_package_is_named_with_its_extra(ua, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ale_py", None)  # as if it were not installed
    told = ua("train", "small.yaml", "environment.id=ALE/Pong-v5")
    assert told.code == 2
    assert 'pip install "uniarena[atari]"' in told.err


def test_a_run_folder_in_use_is_refused(ua) -> None:
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    told = ua("train", "small.yaml", "--run-dir", "full")
    assert told.code == 2
    assert "full is not empty" in told.err
    assert [path.name for path in Path("full").iterdir()] == ["notes.txt"]
