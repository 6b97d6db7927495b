"""Hints before training: settings that seldom go well together. They are never errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from uniarena.analysis.doctor import remedies
from uniarena.analysis.doctor.finding import Change
from uniarena.analysis.doctor.setup import Setup

ENDLESS = ("HalfCheetah", "Swimmer", "Reacher", "Pendulum", "dm_control/")
"""Beginnings of ids of tasks that nothing but a time limit ends."""
HIGH_RATE = 1e-3


@dataclass(frozen=True)
class Hint:
    """One remark on a configuration.

    Attributes:
        topic: one of the headings of docs/tuning.md.
        text: what is set, and what usually goes better.
        change: an override to paste.
    """

    topic: str
    text: str
    change: Change

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"topic": self.topic, "text": self.text, "override": self.change.override or None}

    def __str__(self) -> str:
        return f"{self.topic}: {self.text}\n  try: {self.change}"


def hints(config: Mapping[str, Any], cores: int | None = None) -> list[Hint]:
    """What a resolved configuration invites a remark on; usually nothing.

    Args:
        cores: of the machine that will train; None: this one.
    """
    setup = Setup(config)
    found = [*_rollouts(setup), *_batches(setup), *_processes(setup, cores or os.cpu_count() or 1)]
    found += [*_traces(setup), *_rates(setup), *_exploration(setup), *_lengths(setup)]
    return found


def _columns(setup: Setup) -> int:
    return int(setup.section("environment").get("num_envs") or 1)


def _rows(setup: Setup) -> int:
    """Rows that one update of a policy gradient learns from."""
    return int(setup.learner("train_batch_size") or setup.number("n_steps", 2048) * _columns(setup))


def _rollouts(setup: Setup) -> Iterator[Hint]:
    """A rollout is a multiple of the batch, and at least four of it."""
    batch = setup.learner("batch_size")
    if not setup.on_policy or batch is None:
        return
    rows, columns = _rows(setup), _columns(setup)
    if rows % batch:
        better = next(size for size in range(batch, 0, -1) if rows % size == 0)
        change = Change(
            f"learner.batch_size={better}", f"{rows:,} rows are {rows // better} minibatches of it"
        )
        text = f"{rows:,} rows of an update do not divide into minibatches of {batch}"
        yield Hint("rollouts", text, change)
    if rows < 4 * batch:
        steps = -(-4 * batch // columns)
        text = f"an update has {rows:,} rows, fewer than four minibatches of {batch}"
        yield Hint("rollouts", text, Change(f"learner.n_steps={steps}", f"{steps * columns:,} rows"))


def _batches(setup: Setup) -> Iterator[Hint]:
    """Minibatches of 32 to 512 rows."""
    batch = setup.learner("batch_size")
    if not isinstance(batch, int) or 32 <= batch <= 512:
        return
    value = 32 if batch < 32 else 512
    text = f"minibatches of {batch} rows; 32 to 512 are usual on a CPU"
    yield Hint("batches", text, Change(f"learner.batch_size={value}", "gradients neither noisy nor few"))


def _processes(setup: Setup, cores: int) -> Iterator[Hint]:
    """Worker processes about as many as cores."""
    environment = setup.section("environment")
    if environment.get("vectorization") != "async":
        return
    processes = (environment.get("workers") or {}).get("processes") or _columns(setup)
    if processes > 2 * cores:
        text = f"{processes} worker processes for {cores} cores; each waits for the others"
        yield Hint(
            "environments",
            text,
            Change(f"environment.workers.processes={cores}", "several environments in each"),
        )
    elif _columns(setup) < cores:
        text = f"{_columns(setup)} environments leave some of {cores} cores idle"
        yield Hint("environments", text, Change(f"environment.num_envs={cores}", "one for each core"))


def _traces(setup: Setup) -> Iterator[Hint]:
    """λ from 0.95 to 0.99 for episodes, from 0.9 to 0.95 for tasks without an end."""
    if not setup.has("gae_lambda") or setup.learner("advantage", "gae") != "gae" or setup.algorithm == "a2c":
        return
    now, endless = setup.number("gae_lambda", 0.95), setup.env_id.startswith(ENDLESS)
    low, high = (0.9, 0.95) if endless else (0.95, 0.99)
    if low <= now <= high:
        return
    kind = "a task without an end" if endless else "episodes"
    text = f"gae_lambda is {now:g}; {low:g} to {high:g} suits {kind}"
    yield Hint("traces", text, Change("learner.gae_lambda=0.95", "a good first choice for both"))


def _rates(setup: Setup) -> Iterator[Hint]:
    """A high learning rate with a clip range of 0.1; and none beyond what any learner takes."""
    now = setup.number("learning_rate", 3e-4)
    clipped = setup.has("clip_range") and setup.learner("clip", "hard") != "none"
    if setup.on_policy and clipped and now >= HIGH_RATE and setup.number("clip_range", 0.2) > 0.1:
        text = f"a learning rate of {now:g} with a clip range of {setup.number('clip_range', 0.2):g}"
        yield Hint("learning rate", text, Change("learner.clip_range=0.1", "holds large steps close"))
    elif now > 1e-2:
        text = f"a learning rate of {now:g} is beyond what networks usually take"
        yield Hint("learning rate", text, remedies.slower(setup))
    if 0.0 < now < 1e-5:
        yield Hint(
            "learning rate", f"a learning rate of {now:g} hardly moves anything", remedies.faster(setup)
        )
    epochs = int(setup.number("n_epochs", 1))
    if setup.on_policy and epochs > 30 and setup.learner("target_kl") is None:
        yield Hint("epochs", f"{epochs} epochs on every rollout, and no stop by KL", remedies.kl_stop(setup))


def _exploration(setup: Setup) -> Iterator[Hint]:
    """An entropy bonus that leaves room for the task; an ε that falls."""
    now = setup.number("ent_coef", 0.0)
    if setup.on_policy and now > 0.1:
        yield Hint(
            "exploration", f"an entropy bonus of {now:g}; up to 0.1 is usual", remedies.less_entropy(setup)
        )
    explorer = None if setup.offline else setup.section("agent").get("explorer")
    level = explorer.get("epsilon") if isinstance(explorer, Mapping) else None
    if isinstance(level, int | float) and level > 0.2:
        yield Hint("exploration", f"ε stays at {level:g} throughout", remedies.linear_epsilon(setup))


def _lengths(setup: Setup) -> Iterator[Hint]:
    """A run of at least some updates; a warm-up that leaves time to learn."""
    if setup.on_policy and setup.total and setup.total < 5 * _rows(setup):
        text = f"{setup.total:,} env steps are {setup.total // _rows(setup)} updates of {_rows(setup):,} rows"
        yield Hint("length", text, Change(f"training.total_timesteps={20 * _rows(setup)}", "twenty updates"))
    starts = int(setup.learner("learning_starts", 0) or 0)
    if setup.total and starts > 0.5 * setup.total:
        text = f"the first {starts:,} of {setup.total:,} env steps are random, and nothing is learned from them before"
        yield Hint(
            "length", text, Change(f"learner.learning_starts={setup.total // 10}", "a tenth of the run")
        )
