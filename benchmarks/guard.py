"""What the guard costs: the own time of its calls as a share of an iteration's, in processor time.

    OMP_NUM_THREADS=1 python benchmarks/guard.py [recipe] [env_steps]

Its calls are wrapped in a clock while a recipe (`ppo/cartpole` by default) trains without evaluations and files. What
the steps of the optimiser spend on looking at loss and gradient norm is timed apart and multiplied by their number; the
norm itself is not counted, since clipping needs it. The share errs upwards: the clock is part of what it measures.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from uniarena import assembly
from uniarena.config import load
from uniarena.optim import Minimize

CALLS = ("begin", "admit", "end", "look")


def timed(spent: dict[str, float], counts: dict[str, int], name: str, call: Callable[..., Any]) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        start = time.process_time_ns()
        try:
            return call(*args, **kwargs)
        finally:
            spent[name] = spent.get(name, 0.0) + (time.process_time_ns() - start) / 1e9
            counts[name] = counts.get(name, 0) + 1

    return wrapper


def look_at_a_step(number: int = 100_000) -> float:
    """Seconds of what `Minimize` does to see that one step is good."""
    loss, norm = torch.tensor(1.0), torch.tensor(2.0)
    start = time.process_time()
    for _ in range(number):
        size = float(norm)
        if not (math.isfinite(size) and math.isfinite(float(loss))):
            raise AssertionError
    return (time.process_time() - start) / number


def main(recipe: str = "ppo/cartpole", env_steps: int = 50_000) -> dict[str, Any]:
    exp = load([recipe], [f"training.total_timesteps={env_steps}", "training.threads=1"])
    trainer, _ = assembly.build_trainer(exp, None, {}, quiet=True)
    trainer.callbacks = []  # no evaluation, no files
    trainer._listeners = trainer._find_listeners()
    spent: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name in CALLS:
        setattr(trainer.guard, name, timed(spent, counts, name, getattr(trainer.guard, name)))
    minimize = trainer.agent.learner.minimize
    minimize.watch = timed(spent, counts, "watch", minimize.watch)  # type: ignore[method-assign]
    steps, step = [0], Minimize.__call__

    def counted(self: Minimize, *args: Any) -> Any:
        steps[0] += 1
        return step(self, *args)

    Minimize.__call__ = counted  # type: ignore[method-assign]
    start = time.process_time()
    trainer.fit(env_steps)
    whole = time.process_time() - start
    Minimize.__call__ = step  # type: ignore[method-assign]
    trainer.close()
    spent["steps"] = steps[0] * look_at_a_step()
    counts["steps"] = steps[0]
    iterations = trainer.counters.iterations
    return {
        "recipe": recipe,
        "iterations": iterations,
        "iteration_ms": round(1e3 * whole / iterations, 3),
        "guard_ms": round(1e3 * sum(spent.values()) / iterations, 4),
        "share_percent": round(100 * sum(spent.values()) / whole, 2),
        "us_per_call": {name: round(1e6 * spent[name] / counts[name], 1) for name in spent},
        "calls_per_iteration": {name: round(counts[name] / iterations, 2) for name in counts},
    }


if __name__ == "__main__":
    arguments: list[Any] = sys.argv[1:]
    print(json.dumps(main(*arguments[:1], *(int(text) for text in arguments[1:])), indent=1))
