"""Data of poor behaviour in tasks whose optimum is known, and learners for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from tests.off_policy import chain
from uniarena.batch import Batch
from uniarena.config import parse
from uniarena.optim import Minimize
from uniarena.registry import lookup
from uniarena.seeding import Streams

GAMMA = 0.9
MEMORY = {"type": "gtrxl", "window": 6, "hidden_size": 16, "num_layers": 1, "num_heads": 2}
OBS = spaces.Box(-1.0, 1.0, (2,))
ACT = spaces.Box(np.float32([-1.0, 90.0]), np.float32([1.0, 110.0]))  # very different units
MIDDLE, HALF = torch.tensor([0.0, 100.0]), torch.tensor([1.0, 10.0])
GOOD = torch.tensor([0.5, -0.5])  # scaled


def make(
    kind: str,
    observations: Any = OBS,
    actions: Any = ACT,
    policy: dict[str, Any] | None = None,
    seed: int = 0,
    **fields: Any,
) -> Any:
    """A learner with small networks."""
    learner = lookup("learner", kind)
    cfg = parse(learner.Config, {"gamma": GAMMA, "batch_size": 64, **fields}, "learner")
    small: dict[str, Any] = {"hidden_sizes": [32, 32], **(policy or {})}
    memory = {"memory": MEMORY} if kind == "decision_transformer" else {}
    model = learner.build_model(observations, actions, small, {}, None, Streams(seed), cfg=cfg, **memory)
    return learner(model, cfg, Minimize(cfg.max_grad_norm), torch.Generator().manual_seed(seed))


def aimless(rows: int, generator: torch.Generator, share: float = 0.5) -> Batch:
    """Two kinds of behaviour, in single steps: some of it around minus GOOD, and `share` of it around GOOD.

    The reward is minus the squared distance to GOOD; nothing was ever done beyond the two, and what the mean of the
    data does is in neither.
    """
    good = torch.rand(rows, 1, generator=generator) < share
    row = torch.where(good, GOOD, -GOOD) + 0.25 * torch.randn(rows, 2, generator=generator)
    row = row.clamp(-1.0, 1.0)
    obs = 2 * torch.rand(rows, 2, generator=generator) - 1
    return Batch(
        (rows,),
        obs=obs,
        action=MIDDLE + row * HALF,
        reward=-(row - GOOD).square().sum(-1),
        next_obs=obs.flip(0),
        discount=torch.zeros(rows),
        terminated=torch.ones(rows, dtype=torch.bool),
        weight=torch.ones(rows),
        index=torch.randint(10**6, (rows,), generator=generator),
        next_action=MIDDLE + row.flip(0) * HALF,
        followed=torch.zeros(rows, dtype=torch.bool),
    )


def going_on(rows: int, generator: torch.Generator) -> Batch:
    """The same, of episodes that go on."""
    return aimless(rows, generator).replace(
        discount=torch.full((rows,), GAMMA), followed=torch.ones(rows, dtype=torch.bool)
    )


def sequences(rows: int, generator: torch.Generator) -> Batch:
    """`aimless` as episodes of one step, time first."""
    batch = aimless(rows, generator)
    batch = batch.replace(return_to_go=batch.reward, is_first=torch.ones(rows, dtype=torch.bool))
    return Batch((1, rows), {name: leaf[None] for name, leaf in batch.fields.items()})


def reluctant(rows: int, generator: torch.Generator, right: float = 0.25) -> Batch:
    """Rows of the five-step chain, in every state, by a behaviour that goes the right way too seldom."""
    state = torch.randint(chain.STATES, (rows,), generator=generator)
    action = (torch.rand(rows, generator=generator) < right).long()
    batch = chain.chain()[2 * state + action]
    return batch.replace(
        index=torch.randint(10**6, (rows,), generator=generator),
        weight=torch.ones(rows),
        terminated=batch.discount == 0.0,
    )


def acted(learner: Any, rows: int = 64) -> Tensor:
    """Scaled actions `[N, 2]` of the learned policy."""
    obs = 2 * torch.rand(rows, 2, generator=torch.Generator().manual_seed(9)) - 1
    with torch.no_grad():
        action, _ = learner.model.policy.frozen().mode(obs)
    return (action - MIDDLE) / HALF


def way(learner: Any) -> list[int]:
    """What the learned policy does in each state of the chain."""
    with torch.no_grad():
        found: list[int] = learner.model.policy.frozen().mode(torch.eye(chain.STATES))[0].tolist()
    return found
