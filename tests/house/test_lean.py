"""What a vector step and a minibatch cost in calls: a guard that needs no clock.

Counted are torch operations that reach the dispatcher, and calls of functions by the interpreter, of Python and of C.
The bounds are a little above what there is; whoever raises one says why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from uniarena import assembly
from uniarena.config import load

ENVS, STEPS, EPOCHS, BATCH = 8, 64, 2, 64


class Operations(TorchDispatchMode):
    """Counts what the dispatcher sees."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(call: Callable[[], Any]) -> int:
    with Operations() as counted:
        call()
    return counted.count


def calls(call: Callable[[], Any]) -> int:
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


def trainer(**learner: Any) -> Any:
    config = {
        "environment": {"id": "CartPole-v1", "num_envs": ENVS},
        "learner": learner,
        "training": {"total_timesteps": 100_000},
    }
    made, _ = assembly.build_trainer(load([config], []), None, {}, quiet=True)
    made.sampler.publish(made.agent.actor, 0)
    return made


@pytest.fixture(scope="module")
def ppo() -> Any:
    made = trainer(type="ppo", n_steps=STEPS, n_epochs=EPOCHS, batch_size=BATCH)
    for _ in range(2):  # memory is taken, the optimiser makes its state
        made.agent.observe(made.sampler.collect(ENVS * STEPS))
        made.agent.update(0.0)
    return made


@pytest.mark.parametrize(("count", "bound"), [(operations, 1.0), (calls, 190.0)])
def test_a_vector_step(ppo: Any, count: Callable[..., int], bound: float) -> None:
    def collect(steps: int) -> Callable[[], Any]:
        return lambda: ppo.sampler.collect(ENVS * steps)

    collect(STEPS)(), collect(2 * STEPS)()
    each = (count(collect(2 * STEPS)) - count(collect(STEPS))) / STEPS
    assert each <= bound, f"{each:.1f} a vector step of {ENVS}"


@pytest.mark.parametrize(("count", "bound"), [(operations, 60.0), (calls, 540.0)])
def test_a_minibatch(ppo: Any, count: Callable[..., int], bound: float) -> None:
    rollout = ppo.agent._paid(ppo.sampler.collect(ENVS * STEPS).clone())
    each = count(lambda: ppo.agent.learner.update(rollout)) / (EPOCHS * ENVS * STEPS // BATCH)
    assert each <= bound, f"{each:.1f} a minibatch, the update's own share included"
