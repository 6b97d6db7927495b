"""Distributions of actions, lean: built from network outputs without checks, everything else computed when
asked for.

Shapes: parameters `[..., D]`, actions `[..., *event]`, where `...` are the batch dimensions (`[N]`, or `[L,
N]` for sequences). `log_prob`, `entropy` and `kl` are `[...]`; `atom_log_prob` is `[..., atoms]`: 1 for
Discrete, D elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from uniarena.batch import Tree
from uniarena.policies.noise import Generator, gumbel, logistic


class Distribution(ABC):
    """What a policy says about the action of each row."""

    @abstractmethod
    def rsample(self, generator: Generator = None, noise: Any = None) -> Tree:
        """An action through which gradients flow to the parameters.

        Args:
            generator: source of randomness where `noise` is not given; None: torch's global one.
            noise: what the head's `noise` drew for these rows.

        Raises:
            TypeError: the actions are discrete.
        """

    def sample(self, generator: Generator = None, noise: Any = None) -> Tree:
        """An action, without gradient. Arguments as in `rsample`."""
        with torch.no_grad():
            return self.rsample(generator, noise)

    def sample_with_log_prob(self, generator: Generator = None, noise: Any = None) -> tuple[Tree, Tensor]:
        """An action without gradient, and its log-prob `[...]` with gradient."""
        action = self.sample(generator, noise)
        return action, self.log_prob(action)

    def rsample_with_log_prob(self, generator: Generator = None, noise: Any = None) -> tuple[Tree, Tensor]:
        """An action and its log-prob `[...]`, gradients through both."""
        action = self.rsample(generator, noise)
        return action, self.log_prob(action)

    @abstractmethod
    def mode(self) -> Tree:
        """The action of deterministic evaluation: the most likely one (of a squashed Gaussian: its squashed
        mean).
        """

    def log_prob(self, action: Tree) -> Tensor:
        """`[...]`: log-probability or log-density of the whole action."""
        return self.atom_log_prob(action).sum(-1)

    @abstractmethod
    def atom_log_prob(self, action: Tree) -> Tensor:
        """`[..., atoms]`; sums to `log_prob`."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """`[...]`, in nats."""

    @abstractmethod
    def kl(self, other: Any) -> Tensor:
        """`[...]`: KL(self ‖ other) in nats; `other` is of the same kind."""


class _Discrete(Distribution):
    def rsample(self, generator: Generator = None, noise: Any = None) -> Tree:
        raise TypeError("discrete actions have no reparameterised sample; use sample().")


class Categorical(_Discrete):
    """One of n.

    Args:
        logits: `[..., n]`, not normalised.
        mask: `[..., n]` bool or int, true where legal; all false reads as all true.
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        self.logits = logits if mask is None else mask_logits(logits, mask)
        self._log_p: Tensor | None = None

    @property
    def log_p(self) -> Tensor:
        """`[..., n]`: log-probabilities."""
        if self._log_p is None:
            self._log_p = F.log_softmax(self.logits, dim=-1)
        return self._log_p

    def sample(self, generator: Generator = None, noise: Any = None) -> Tensor:
        """`[...]` int64. `noise [..., n]` is standard Gumbel: argmax(logits + noise) is a sample (Gumbel
        1954).
        """
        if noise is None:
            noise = gumbel(self.logits.shape, generator, self.logits.device)
        return (self.logits + noise).argmax(-1)

    def mode(self) -> Tensor:
        return self.logits.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.atom_log_prob(action).squeeze(-1)

    def atom_log_prob(self, action: Tensor) -> Tensor:
        return self.log_p.gather(-1, action.long().unsqueeze(-1))

    def entropy(self) -> Tensor:
        return -(self.log_p.exp() * self.log_p).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        return (self.log_p.exp() * (self.log_p - other.log_p)).sum(-1)


class MultiCategorical(_Discrete):
    """K independent choices.

    Args:
        logits: `[..., K, n]` with n the largest number of classes; classes that a choice lacks hold the
            dtype's minimum.
        event: shape of an action, K numbers.
    """

    def __init__(self, logits: Tensor, event: tuple[int, ...]) -> None:
        self._each = Categorical(logits)
        self.event = event

    def sample(self, generator: Generator = None, noise: Any = None) -> Tensor:
        """`[..., *event]` int64; `noise [..., K, n]` is standard Gumbel."""
        return unflatten(self._each.sample(generator, noise), self.event)

    def mode(self) -> Tensor:
        return unflatten(self._each.mode(), self.event)

    def atom_log_prob(self, action: Tensor) -> Tensor:
        return self._each.atom_log_prob(flatten(action, self.event)).squeeze(-1)

    def entropy(self) -> Tensor:
        return self._each.entropy().sum(-1)

    def kl(self, other: MultiCategorical) -> Tensor:
        return self._each.kl(other._each).sum(-1)


class MultiBernoulli(_Discrete):
    """D independent bits.

    Args:
        logits: `[..., D]` of a one.
        event: shape of an action, D numbers.
    """

    def __init__(self, logits: Tensor, event: tuple[int, ...]) -> None:
        self.logits = logits
        self.event = event

    def sample(self, generator: Generator = None, noise: Any = None) -> Tensor:
        """`[..., *event]` int8; `noise [..., D]` is standard logistic."""
        if noise is None:
            noise = logistic(self.logits.shape, generator, self.logits.device)
        return unflatten((self.logits + noise > 0).to(torch.int8), self.event)

    def mode(self) -> Tensor:
        return unflatten((self.logits > 0).to(torch.int8), self.event)

    def atom_log_prob(self, action: Tensor) -> Tensor:
        return flatten(action, self.event) * self.logits - F.softplus(self.logits)

    def entropy(self) -> Tensor:
        return (F.softplus(self.logits) - self.logits * self.logits.sigmoid()).sum(-1)

    def kl(self, other: MultiBernoulli) -> Tensor:
        p, a, b = self.logits.sigmoid(), self.logits, other.logits
        return (p * (a - b) - F.softplus(a) + F.softplus(b)).sum(-1)


class JointDistribution(Distribution):
    """Independent distributions of the parts of a Dict or Tuple action; actions and noise are trees of the
    parts.

    Args:
        parts: dict or tuple (of dicts or tuples…) of distributions, here flat: name or position →
            distribution.
    """

    def __init__(self, parts: dict[str, Distribution] | tuple[Distribution, ...]) -> None:
        self.parts = parts
        self._list = list(parts.values()) if isinstance(parts, dict) else list(parts)

    def rsample(self, generator: Generator = None, noise: Any = None) -> Tree:
        noises = [None] * len(self._list) if noise is None else noise
        return self._tree(
            [part.rsample(generator, own) for part, own in zip(self._list, noises, strict=True)]
        )

    def sample(self, generator: Generator = None, noise: Any = None) -> Tree:
        noises = [None] * len(self._list) if noise is None else noise
        return self._tree([part.sample(generator, own) for part, own in zip(self._list, noises, strict=True)])

    def mode(self) -> Tree:
        return self._tree([part.mode() for part in self._list])

    def log_prob(self, action: Tree) -> Tensor:
        return sum(part.log_prob(own) for part, own in self._pairs(action))  # type: ignore[return-value]

    def atom_log_prob(self, action: Tree) -> Tensor:
        return torch.cat([part.atom_log_prob(own) for part, own in self._pairs(action)], dim=-1)

    def entropy(self) -> Tensor:
        return sum(part.entropy() for part in self._list)  # type: ignore[return-value]

    def kl(self, other: JointDistribution) -> Tensor:
        return sum(a.kl(b) for a, b in zip(self._list, other._list, strict=True))  # type: ignore[return-value]

    def _tree(self, values: list[Tree]) -> Tree:
        return dict(zip(self.parts, values, strict=True)) if isinstance(self.parts, dict) else tuple(values)

    def _pairs(self, action: Tree) -> list[tuple[Distribution, Tree]]:
        keys = list(self.parts) if isinstance(self.parts, dict) else range(len(self._list))
        return [(part, action[key]) for part, key in zip(self._list, keys, strict=True)]


def mask_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """Logits with the dtype's minimum where `mask [..., n]` is false; a row without a true entry is left as
    it is.

    The minimum is finite, so that 0 · log 0 in entropy and KL is 0 and gradients stay numbers.
    """
    legal = mask.bool()
    legal = legal | ~legal.any(-1, keepdim=True)
    return logits.masked_fill(~legal, torch.finfo(logits.dtype).min)


def flatten(action: Tensor, event: tuple[int, ...]) -> Tensor:
    """`[..., *event]` → `[..., D]`."""
    if len(event) == 1:
        return action
    return action.unsqueeze(-1) if not event else action.flatten(-len(event))


def unflatten(action: Tensor, event: tuple[int, ...]) -> Tensor:
    """`[..., D]` → `[..., *event]`."""
    return action if len(event) == 1 else action.reshape(*action.shape[:-1], *event)
