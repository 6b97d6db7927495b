"""Where an environment cannot give its state, a checkpoint due by env steps declares a reset, also without a resume."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import uniarena
from tests.fakes.envs import CounterEnv
from tests.resume.test_exact import config, ppo
from uniarena import checkpoint
from uniarena.agent import Agent
from uniarena.batch import Rollout
from uniarena.envs import make_env
from uniarena.ops.returns import successors
from uniarena.trainer import Trainer
from uniarena.trainer.callbacks.checkpoint import Checkpoint


class Opaque(CounterEnv):
    """A counter with a part whose state nobody can read."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.lock = threading.Lock()


class Chunks:
    """Keeps every chunk and the episodes reported with it."""

    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []
        self.lengths: list[int] = []

    def on_batch_collected(self, trainer: Trainer, event: Any) -> None:
        self.rollouts.append(event.rollout.clone())
        self.lengths += [episode.length for episode in event.episodes]


def run(folder: Path | None, env: Any, save: int, total: int, **learner: Any) -> tuple[Chunks, Trainer]:
    fields = {"type": "ppo", "n_steps": 4, "n_epochs": 1, "gamma": 0.9, "gae_lambda": 0.0, **learner}
    chunks = Chunks()
    agent = Agent.assemble(env, fields, policy={"hidden_sizes": [4]})
    trainer = Trainer(
        agent, env, callbacks=[chunks, Checkpoint(every_env_steps=save, keep_last=None)], run_dir=folder
    )
    trainer.fit(total)
    return chunks, trainer


def test_the_chunk_that_ends_at_a_due_checkpoint_ends_all_its_episodes(tmp_path: Path) -> None:
    """Two columns of episodes of 100 and 6 steps, chunks of 4 rows, a checkpoint every 16 steps = 2 chunks."""
    env = make_env([lambda: Opaque(100), lambda: Opaque(6)])
    chunks, trainer = run(tmp_path, env, save=16, total=48)
    for k, rollout in enumerate(chunks.rollouts):
        rows, due = rollout.rows, k % 2 == 1
        assert rows.truncated[:-1].any().item() is False
        assert rows.truncated[-1].tolist() == [due, due]
        assert rollout.last.is_first.tolist() == [due, due] and ("cut" in rollout.last) == due
        assert rollout.last.obs.flatten().tolist() == ([0, 0] if due else [4, 4])
        # what the cut rows are bootstrapped from is what they led to, not what the reset brought
        assert successors(rollout)[-1].flatten().tolist() == ([8, 2] if due else [4, 4])
    kinds = {path.name: checkpoint.read_meta(path) for path in (tmp_path / "checkpoints").iterdir()}
    found = {name: (meta["kind"], meta["exact"]) for name, meta in kinds.items()}
    assert found == dict.fromkeys(("16", "32", "48"), ("step", True))
    assert chunks.lengths == [6, 6, 6] and trainer.counters.episodes == 3, "cut episodes are not reported"


def test_episodes_that_end_by_themselves_at_the_boundary_are_reported(tmp_path: Path) -> None:
    env = make_env([lambda: Opaque(8), lambda: Opaque(100)], max_episode_steps=None)
    chunks, _ = run(tmp_path, env, save=16, total=32)
    assert chunks.lengths == [8, 8]
    assert chunks.rollouts[1].last.cut.tolist() == [False, True]
    assert chunks.rollouts[1].rows.terminated[-1].tolist() == [True, False]


def test_the_value_of_a_cut_row_is_bootstrapped(tmp_path: Path) -> None:
    env = make_env(lambda: Opaque(100))
    chunks, trainer = run(tmp_path, env, save=4, total=4)
    trainer.agent.model.value = lambda obs, *_: obs[:, 0].clone()  # type: ignore[method-assign]
    rows, _ = trainer.agent.learner.targets(chunks.rollouts[0])
    assert rows.target[:, 0].tolist() == pytest.approx([1 + 0.9 * (t + 1) for t in range(4)])


def test_no_reset_without_a_checkpoint_or_where_state_can_be_saved(tmp_path: Path) -> None:
    without, _ = run(None, make_env(lambda: Opaque(100)), save=4, total=16)
    native, _ = run(tmp_path, make_env(lambda: CounterEnv(100)), save=4, total=16)
    for chunks in (without, native):
        assert [rollout.last.obs.item() for rollout in chunks.rollouts] == [4, 8, 12, 16]
        assert not any(rollout.rows.truncated.any() for rollout in chunks.rollouts)


def test_best_and_final_checkpoints_reset_nothing_and_say_that_they_are_not_exact(tmp_path: Path) -> None:
    env = make_env(lambda: Opaque(100))
    chunks, trainer = run(tmp_path, env, save=1000, total=12)
    trainer.save("best")
    assert [rollout.last.obs.item() for rollout in chunks.rollouts] == [4, 8, 12]
    for name, kind in (("12", "final"), ("best", "best")):
        meta = checkpoint.read_meta(tmp_path / "checkpoints" / name)
        assert (meta["kind"], meta["exact"]) == (kind, False)


def test_a_run_goes_on_from_the_newest_checkpoint_that_is_exact_rather_than_from_the_best(
    tmp_path: Path,
) -> None:
    env = make_env(lambda: Opaque(100))
    _, trainer = run(tmp_path, env, save=4, total=8)
    trainer.save("best")
    assert checkpoint.newest(tmp_path / "checkpoints")[0].name == "8"
    for name in ("4", "8"):
        checkpoint.remove(tmp_path / "checkpoints" / name)
    assert checkpoint.newest(tmp_path / "checkpoints")[0].name == "best"


def test_state_is_looked_for_only_where_a_checkpoint_is_due(tmp_path: Path) -> None:
    """It takes as long as to save it, and may go through worker processes."""
    env = make_env(lambda: CounterEnv(100))
    asked = 0
    give = env.state_dict

    def counted() -> Any:
        nonlocal asked
        asked += 1
        return give()

    env.state_dict = counted  # type: ignore[method-assign]
    run(tmp_path, env, save=1000, total=200)
    assert asked <= 3, "at the end alone"


def test_a_run_says_which_kind_of_checkpoint_it_has_and_how_it_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = {
        "CartPole-v1": ("with the environment's own state", "in the middle of its episodes"),
        "tests.resume.envs:OpaqueEnv": (
            "the environment cannot give its state, so those due by env steps end all its episodes",
            "with new episodes",
        ),
    }
    for index, (env, (kept, place)) in enumerate(kinds.items()):
        settings = config({"id": env}, ppo(), total=256, save=128)
        with caplog.at_level(logging.INFO, "uniarena"):
            uniarena.train(settings, run_dir=tmp_path / str(index))
            assert f"checkpoints: {kept}" in caplog.text
            caplog.clear()
            uniarena.resume(tmp_path / str(index), ["training.total_timesteps=384"])
        assert f"at 256 env steps, {place}\n" in caplog.text and f"checkpoints: {kept}" in caplog.text
