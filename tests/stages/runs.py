"""A small run in two stages: from a recording of Pendulum-v1, and on in the environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.resume.runs import differences
from uniarena.checkpoint.find import stages_in

TRAINING = {"n_eval_episodes": 1, "device": "cpu", "threads": 1}
PRETRAIN = {"total_updates": 40, "save_interval": 20, "eval_interval": 20, "log_interval": 10}
FINETUNE = {
    "total_timesteps": 60,
    "save_every_env_steps": 20,
    "eval_every_env_steps": 20,
    "log_every_env_steps": 20,
}


def config(data: Path, learner: str = "iql", then: str | None = None, **buffer: Any) -> dict[str, Any]:
    """From `data` with one learner, and online with the same or another."""
    off_policy = {"learning_starts": 5, "updates_per_env_step": 0.5}
    second: dict[str, Any] = {} if then == "ppo" else off_policy
    if then is not None:
        second = {"type": then, "batch_size": 16, **second, **({"n_steps": 16} if then == "ppo" else {})}
    shown = {"demonstrations": {"ratio": {"type": "linear", "start": 0.5, "end": 0.25}}, **buffer}
    return {
        "experiment": {"seed": 3, "loggers": [{"type": "jsonl"}]},
        "environment": {"id": "Pendulum-v1", "max_episode_steps": 20},
        "agent": {"policy": {"hidden_sizes": [16]}},
        "learner": {"type": learner, "batch_size": 16, "learning_rate": 1e-3},
        "training": TRAINING,
        "stages": [
            {"name": "pretrain", "data": str(data), "training": PRETRAIN},
            {
                "name": "finetune",
                "learner": second,
                **({} if then == "ppo" else {"agent": {"buffer": shown}}),
                "training": FINETUNE,
            },
        ],
    }


def unlike(whole: Path, other: Path) -> list[str]:
    """Where two runs in stages differ, in any stage; empty: bit for bit the same."""
    assert [path.name for path in stages_in(whole)] == [path.name for path in stages_in(other)]
    pairs = zip(stages_in(whole), stages_in(other), strict=True)
    return [f"{a.name}: {line}" for a, b in pairs for line in differences(a, b)]


def said(run: Path) -> str:
    """The log of a stage."""
    return (run / "run.log").read_text(encoding="utf-8")


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The figures of a stage."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
