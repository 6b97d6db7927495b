"""UniArena's PPO updates alone, again and again on one rollout: what environments and acting add is the rest."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from on_policy import WORK
from run_uniarena import build
from stopwatch import arguments


def main() -> None:
    args = arguments()
    work, made = WORK[args.task], []  # type: ignore[var-annotated]
    rows = work.steps * work.envs
    with tempfile.TemporaryDirectory() as folder:
        trainer: Any = build(args, rows, made, Path(folder))
    agent, sampler = trainer.agent, trainer.sampler
    sampler.publish(agent.actor, 0)
    agent.observe(sampler.collect(rows))
    agent.update(0.0)
    rollout = agent._paid(sampler.collect(rows).clone())
    for _ in range(2):
        agent.learner.update(rollout)
    updates = (args.last - args.first) // work.steps
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(updates):
        agent.learner.update(rollout)
    row = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    print(json.dumps({"steps": updates * rows, **row}))


if __name__ == "__main__":
    main()
