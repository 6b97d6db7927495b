"""A five-step chain whose transitions fit into one batch, and learners for it."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from uniarena.batch import Batch
from uniarena.learners.off_policy.dqn import DQN
from uniarena.learners.off_policy.dqn_config import DQNConfig
from uniarena.optim import Minimize
from uniarena.seeding import Streams
from uniarena.values.q_model import QModel, build_q_model

STATES = 5
GAMMA = 0.9
SPACE = spaces.Box(0.0, 1.0, (STATES,))
MASKED = spaces.Dict({"obs": SPACE, "action_mask": spaces.MultiBinary(2)})
ACTIONS = spaces.Discrete(2)  # 0: left (stays at the left end), 1: right; leaving at the right end pays 1


def chain() -> Batch:
    """All ten transitions."""
    state = torch.arange(STATES).repeat_interleave(2)
    action = torch.arange(2).repeat(STATES)
    after = torch.where(action == 1, state + 1, (state - 1).clamp(min=0))
    over = after == STATES
    eye = torch.eye(STATES)
    return Batch(
        (len(state),),
        obs=eye[state],
        action=action,
        reward=over.float(),
        next_obs=eye[after.clamp(max=STATES - 1)],
        discount=GAMMA * (~over).float(),
        index=torch.arange(len(state)),
    )


def optimal_q() -> Tensor:
    """`[states, actions]`: right pays γ^(steps still to go), left the value of where it leads, one step later."""
    right = GAMMA ** torch.arange(STATES - 1, -1, -1.0)
    left = GAMMA * torch.cat([right[:1], right[:-1]])
    return torch.stack([left, right], dim=-1)


def make(
    space: spaces.Space[Any] = SPACE,
    actions: spaces.Space[Any] = ACTIONS,
    policy: dict[str, Any] | None = None,
    seed: int = 0,
    normalizer: Any = None,
    **options: Any,
) -> DQN:
    cfg = DQNConfig(**{"gamma": GAMMA, "learning_rate": 3e-3, **options})
    model: QModel = build_q_model(space, actions, policy or {}, {}, normalizer, Streams(seed), cfg=cfg)
    return DQN(model, cfg, Minimize(cfg.max_grad_norm), torch.Generator().manual_seed(seed))


def masked(batch: Batch, mask: Tensor) -> Batch:
    """The batch with the same mask `[2]` in every observation."""
    rows = mask.expand(*batch.shape, -1)
    return batch.replace(
        obs={"obs": batch.obs, "action_mask": rows}, next_obs={"obs": batch.next_obs, "action_mask": rows}
    )
