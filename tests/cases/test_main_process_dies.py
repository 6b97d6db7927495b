"""Case B63: an error in the main process ends it, with its traceback, and no worker stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCRIPT = """
import multiprocessing, os, sys
import uniarena
from tests.fakes.envs import CounterEnv

class Raises:
    def on_env_step(self, trainer, event):
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen == 10:
            print(*[child.pid for child in multiprocessing.active_children()], flush=True)
            raise {error}("of mine")

if __name__ == "__main__":
    how, folder = sys.argv[1:]
    learner = {{"type": "dqn", "learning_starts": 4, "batch_size": 4}}
    buffer = {{"capacity": 100, "memory_map": folder + "/rows"}}
    if how == "train":
        environment = {{"id": CounterEnv, "num_envs": 4, "vectorization": "async"}}
        uniarena.train({{"environment": environment, "learner": learner, "agent": {{"buffer": buffer}}}},
                       callbacks=[Raises()], run_dir=folder + "/run", quiet=True)
    env = uniarena.make_env(CounterEnv, 4, vectorization="async")
    agent = uniarena.Agent.assemble(env, learner, parts={{"buffer": buffer}})
    uniarena.Trainer(agent, env, callbacks=[Raises()]).fit(1000)  # and nobody closes anything
"""


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("trainer", "RuntimeError"),
        pytest.param("train", "RuntimeError", marks=pytest.mark.slow),
        pytest.param("trainer", "SystemExit", marks=pytest.mark.slow),
        pytest.param("train", "KeyboardInterrupt", marks=pytest.mark.slow),
    ],
)
def test_b63_an_error_after_ten_steps_with_four_workers(how: str, error: str, tmp_path: Path) -> None:
    """Case B63: raised in a user's callback; also what is no `Exception`, and where the user closes nothing."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(error=error))
    path = os.pathsep.join(entry or "." for entry in sys.path)
    done = subprocess.run(
        [sys.executable, str(script), how, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,  # it would hang for ever
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode != 0 and "of mine" in done.stderr
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) == 4
    assert not [pid for pid in workers if psutil.pid_exists(pid)]
    assert not list(tmp_path.glob("rows/*")), "nor does replay that was mapped into files"
