"""One-step tasks whose transitions are drawn by hand: reach a target with a continuous or discrete action."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from uniarena.batch import Batch
from uniarena.config import parse
from uniarena.learners.base import Learner
from uniarena.learners.off_policy.ddpg import DDPG
from uniarena.learners.off_policy.redq import DROQ, REDQ
from uniarena.learners.off_policy.sac import SAC
from uniarena.learners.off_policy.td3 import TD3
from uniarena.learners.off_policy.tqc import TQC
from uniarena.optim import Minimize
from uniarena.seeding import Streams

LEARNERS: dict[str, Any] = {"sac": SAC, "tqc": TQC, "redq": REDQ, "droq": DROQ, "td3": TD3, "ddpg": DDPG}
OBS = spaces.Box(-1.0, 1.0, (2,))
ACT = spaces.Box(np.float32([-1.0, 90.0]), np.float32([1.0, 110.0]))  # very different units
GOAL = torch.tensor([0.5, 96.0])  # in units of the bounds; [0.5, -0.4] scaled
WIDTH = torch.tensor([1.0, 10.0])


def make(
    kind: Any,
    actions: spaces.Space[Any] = ACT,
    observations: spaces.Space[Any] = OBS,
    policy: dict[str, Any] | None = None,
    value: dict[str, Any] | None = None,
    normalizer: Any = None,
    seed: int = 0,
    **fields: Any,
) -> Learner:
    """A learner with small networks."""
    kind = LEARNERS[kind] if isinstance(kind, str) else kind
    cfg = parse(kind.Config, {"learning_rate": 3e-3, "batch_size": 64, **fields}, "learner")
    build = getattr(kind, "learner", kind).build_model
    small: dict[str, Any] = {"hidden_sizes": [32, 32]}
    model = build(observations, actions, policy or small, value or small, normalizer, Streams(seed), cfg=cfg)
    minimize = Minimize(cfg.max_grad_norm)
    learner: Learner = kind(model, cfg, minimize, torch.Generator().manual_seed(seed))
    return learner


def batch(rows: int, generator: torch.Generator, goal: Tensor = GOAL, action: Tensor | None = None) -> Batch:
    """Uniform actions in single steps; the reward is minus the squared distance to the goal, in half widths."""
    if action is None:
        row = 2 * torch.rand(rows, 2, generator=generator) - 1
        action = torch.tensor([0.0, 100.0]) + row * WIDTH
    obs = 2 * torch.rand(rows, 2, generator=generator) - 1
    return Batch(
        (rows,),
        obs=obs,
        action=action,
        reward=-((action - goal) / WIDTH).square().sum(-1),
        next_obs=obs.flip(0),
        discount=torch.zeros(rows),
        terminated=torch.ones(rows, dtype=torch.bool),
        weight=torch.ones(rows),
        index=torch.arange(rows),
    )


def going_on(rows: int, generator: torch.Generator) -> Batch:
    """The same, of episodes that go on."""
    return batch(rows, generator).replace(discount=torch.full((rows,), 0.9))
