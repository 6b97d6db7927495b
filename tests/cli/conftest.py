"""Calling the command line inside of this process, from a folder of the test's own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from uniarena import cli

# A run of 4 iterations that takes a fraction of a second.
SMALL = """\
environment: {id: CartPole-v1, num_envs: 2}
learner: {type: ppo, n_steps: 16, n_epochs: 1, batch_size: 16}
agent: {policy: {hidden_sizes: [8]}}
training: {total_timesteps: 128, n_eval_episodes: 2, eval_every_env_steps: 64, save_every_env_steps: 64}
"""


class Told(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


@pytest.fixture
def ua(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Told]:
    """`ua("train", "small.yaml")`, run in a fresh folder that holds `small.yaml`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")

    def call(*arguments: str | Path) -> Told:
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(logging.getLogger(), "handlers", [])  # not pytest's: then messages go to stderr
            code = cli.invoke([str(argument) for argument in arguments])
        return Told(code, *capfd.readouterr())

    return call
