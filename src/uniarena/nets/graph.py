"""Sets and graphs of entities: the same numbers whatever the order of the entities, and whatever padding holds.

Sets: Zaheer et al. 2017 (arXiv:1703.06114). Graphs: Battaglia et al. 2018 (arXiv:1806.01261), algorithm 1, with node
updates from the mean of incoming messages.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Entities(nn.Module):
    """`[..., E, F]` entities → `[..., 2·H]`: the largest and the mean of what they are after some rounds of messages.

    Args:
        width: F, numbers of an entity.
        hidden_size: H.
        rounds: of messages between entities; 0: each one is looked at by itself, as a set is.

    Attributes:
        out_dim: 2·H.
    """

    def __init__(self, width: int, hidden_size: int, rounds: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Linear(width, hidden_size), nn.ReLU(), nn.Linear(hidden_size, hidden_size), nn.ReLU()
        )
        self.rounds = nn.ModuleList([Messages(hidden_size) for _ in range(rounds)])
        self.out_dim = 2 * hidden_size

    def forward(self, entities: Tensor, mask: Tensor | None = None, edges: Tensor | None = None) -> Tensor:
        """Features of each set.

        Args:
            mask: `[..., E]`, which entities are there; None: all. Where none is, the features are 0.
            edges: `[..., E, E]`, row i, column j: i sends to j; None: everyone sends to every other.
        """
        x = entities.float()
        shape = x.shape[:-1]
        there = torch.ones(shape, dtype=torch.bool, device=x.device) if mask is None else mask > 0
        h = self.first(torch.where(there[..., None], x, 0.0))
        if len(self.rounds):
            every = ~torch.eye(shape[-1], dtype=torch.bool, device=x.device)
            linked = every if edges is None else edges > 0
            linked = linked & there[..., :, None] & there[..., None, :]
            for messages in self.rounds:
                h = messages(h, linked)
        count = there.sum(-1, keepdim=True)
        kept = torch.where(there[..., None], h, 0.0)  # what is kept is not negative, so that 0 is the least
        return torch.cat([kept.amax(-2), kept.sum(-2) / count.clamp(min=1)], dim=-1)


class Messages(nn.Module):
    """One round: every entity hears from those that are linked to it, and becomes something else.

    Args:
        hidden_size: H.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.sender, self.receiver = (nn.Linear(hidden_size, hidden_size) for _ in range(2))
        self.update = nn.Linear(2 * hidden_size, hidden_size)

    def forward(self, h: Tensor, linked: Tensor) -> Tensor:
        """`h [..., E, H]`, `linked [..., E, E]` bool from senders (rows) to receivers → `[..., E, H]`."""
        said = torch.relu(self.sender(h)[..., :, None, :] + self.receiver(h)[..., None, :, :])
        heard = torch.where(linked[..., None], said, 0.0).sum(-3)
        heard = heard / linked.sum(-2).clamp(min=1)[..., None]
        return torch.relu(h + self.update(torch.cat([h, heard], dim=-1)))
