"""Callbacks given from Python: what would never be called, or never be saved, is refused before training."""

from pathlib import Path
from typing import Any

import pytest

import uniarena
from tests.fakes.envs import CounterEnv
from uniarena import Agent, ConfigError, Trainer
from uniarena.envs import make_env

SMALL = {
    "environment": {"id": CounterEnv},
    "learner": {"type": "ppo", "n_steps": 8},
    "training": {"total_timesteps": 8},
}


class Counts:
    def __init__(self) -> None:
        self.seen: Any = set()

    def on_update_end(self, trainer: Any, event: Any) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}


@pytest.mark.parametrize(
    ("given", "said"), [(Counts, "Counts is a class"), ("early_stop", "no method"), (None, "no method")]
)
def test_what_would_never_be_called_is_refused(given: Any, said: str) -> None:
    env = make_env(CounterEnv)
    with pytest.raises(ConfigError, match=said) as caught:
        Trainer(Agent.assemble(env), env, callbacks=[given])
    assert caught.value.path == "callbacks.0"


def test_a_state_that_no_checkpoint_can_hold_is_told_before_training(tmp_path: Path) -> None:
    callback = Counts()
    with pytest.raises(ConfigError, match=r"Counts cannot be saved: state_dict\(\).seen is a builtins.set"):
        uniarena.train(SMALL, run_dir=tmp_path / "run", quiet=True, callbacks=[callback])
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"learner": {"type": dict}}, "learner.type"),
        ({"learner": {"type": "os:path"}}, "learner.type"),
        ({"callbacks": [{"type": "os:path"}]}, "callbacks.0.type"),
        ({"agent": {"policy": {"network": "os:path"}}}, "agent.policy.network"),
        ({"environment": {"id": []}}, "environment.id"),
    ],
)
def test_what_is_named_must_be_of_its_kind(tmp_path: Path, change: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        uniarena.train({**SMALL, **change}, run_dir=tmp_path / "run", quiet=True)
    assert caught.value.path == path


def test_one_override_may_be_a_text_and_a_config_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got 2"):
        uniarena.train(SMALL, "learner.gamma=2")
    with pytest.raises(ConfigError, match="expected a file, a recipe or a map; got NoneType"):
        uniarena.train(None)  # type: ignore[arg-type]


def test_a_run_whose_config_is_no_text_is_told(tmp_path: Path) -> None:
    run = uniarena.train(SMALL, run_dir=tmp_path / "run", quiet=True).run
    (run / "config.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        uniarena.resume(run, ["training.total_timesteps=16"])


def test_a_wrong_number_of_actions_is_told_before_any_environment_steps() -> None:
    env = make_env(CounterEnv, 2)
    env.reset()
    with pytest.raises(ValueError, match="3 actions were given for 2 environments"):
        env.step([0, 0, 0])
    assert env.call("get_wrapper_attr", "t") == [0, 0]
