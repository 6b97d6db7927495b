"""Heads: from the last layer's numbers to a distribution over one action space, and the short way to a
sample.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, cast

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional as F

from uniarena.batch import Tree
from uniarena.config import ConfigError
from uniarena.envs.spaces import describe
from uniarena.policies.continuous import Beta, DiagGaussian, SquashedGaussian
from uniarena.policies.distributions import (
    Categorical,
    Distribution,
    JointDistribution,
    MultiBernoulli,
    MultiCategorical,
    mask_logits,
    unflatten,
)
from uniarena.policies.noise import Generator, gumbel, logistic, normal

DistributionName = Literal["auto", "gaussian", "squashed_gaussian", "beta"]

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""Bounds of a log-std that a network computes per state (Haarnoja et al. 2018, the authors' code)."""

GSDE_EPSILON = 1e-6


class Head(nn.Module, ABC):
    """Distribution over one action space.

    Attributes:
        param_dim: width of the parameters.
        latent_dim: how many of them (the last ones) are features of the network rather than outputs of a
            layer.
        mask_dim: width of an action mask; 0: masks have no meaning here.
    """

    latent_dim = 0
    mask_dim = 0

    def __init__(self, param_dim: int) -> None:
        super().__init__()
        self.param_dim = param_dim

    @abstractmethod
    def dist(self, params: Tensor, mask: Tensor | None = None) -> Distribution:
        """The distribution of parameters `[..., param_dim]` under a mask `[..., mask_dim]`."""

    @abstractmethod
    def noise(self, steps: int, columns: int, generator: Generator) -> Tree | None:
        """All the randomness of `steps` samples of `columns` rows, `[T, B, ...]`; None where its size is not
        fixed.
        """

    def sample(
        self, params: Tensor, noise: Any = None, mask: Tensor | None = None, generator: Generator = None
    ) -> Tree:
        """An action `[..., *event]` from one step of `noise`, or from `generator`; few operations, no
        gradient needed.
        """
        return self.dist(params, mask).sample(generator, noise)

    def mode(self, params: Tensor, mask: Tensor | None = None) -> Tree:
        """The deterministic action `[..., *event]`."""
        return self.dist(params, mask).mode()


class CategoricalHead(Head):
    """Discrete(n): n logits."""

    def __init__(self, space: spaces.Discrete) -> None:
        super().__init__(int(space.n))
        self.mask_dim = int(space.n)

    def dist(self, params: Tensor, mask: Tensor | None = None) -> Categorical:
        return Categorical(params, mask)

    def noise(self, steps: int, columns: int, generator: Generator) -> Tensor:
        return gumbel((steps, columns, self.param_dim), generator, device_of(generator))

    def sample(
        self, params: Tensor, noise: Any = None, mask: Tensor | None = None, generator: Generator = None
    ) -> Tensor:
        if mask is not None:
            params = mask_logits(params, mask)
        if noise is None:
            noise = gumbel(params.shape, generator, params.device)
        return (params + noise).argmax(-1)

    def pick_array(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """`sample` on arrays; `params` are changed."""
        np.add(params, noise, params)
        picked: np.ndarray = params.argmax(-1)
        return picked


class MultiCategoricalHead(Head):
    """MultiDiscrete: the logits of all choices side by side, masks likewise."""

    index: Tensor
    absent: Tensor

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        counts = space.nvec.reshape(-1).astype(int)
        super().__init__(int(counts.sum()))
        self.mask_dim = self.param_dim
        self.event = tuple(space.shape)
        self.choices, self.widest = len(counts), int(counts.max())
        self.even = bool((counts == self.widest).all())
        offsets = np.cumsum(counts) - counts
        columns = np.arange(self.widest)
        present = columns < counts[:, None]
        index = torch.as_tensor(np.where(present, offsets[:, None] + columns, 0).reshape(-1))
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("absent", torch.as_tensor(~present), persistent=False)

    def dist(self, params: Tensor, mask: Tensor | None = None) -> MultiCategorical:
        logits = self._table(params)
        if mask is not None:
            legal = self._table(mask).bool()
            logits = mask_logits(logits, legal if self.even else legal & ~self.absent)
        if not self.even:
            logits = logits.masked_fill(self.absent, torch.finfo(logits.dtype).min)
        return MultiCategorical(logits, self.event)

    def noise(self, steps: int, columns: int, generator: Generator) -> Tensor:
        return gumbel((steps, columns, self.choices, self.widest), generator, device_of(generator))

    def _table(self, flat: Tensor) -> Tensor:
        """`[..., Σ n]` → `[..., K, n]`; places of classes that a choice lacks repeat the first entry."""
        if not self.even:
            flat = flat.index_select(-1, self.index)
        return flat.reshape(*flat.shape[:-1], self.choices, self.widest)


class MultiBernoulliHead(Head):
    """MultiBinary: one logit per bit."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        super().__init__(int(np.prod(space.shape)))
        self.event = tuple(space.shape)

    def dist(self, params: Tensor, mask: Tensor | None = None) -> MultiBernoulli:
        return MultiBernoulli(params, self.event)

    def noise(self, steps: int, columns: int, generator: Generator) -> Tensor:
        return logistic((steps, columns, self.param_dim), generator, device_of(generator))


class GaussianHead(Head):
    """Box: D means, and a learned log-std per dimension that does not depend on the state.

    Args:
        space: the Box.
        log_std_init: initial log-std.
        state_std: the network computes the log-std too: 2·D parameters, means first.
        bounds: squash into the (finite) bounds; None: unbounded, the environment's side clips.
    """

    middle: Tensor
    half_width: Tensor

    def __init__(
        self,
        space: spaces.Box,
        log_std_init: float = 0.0,
        state_std: bool = False,
        bounds: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        dims = int(np.prod(space.shape))
        super().__init__(2 * dims if state_std else dims)
        self.dims, self.event, self.squashed = dims, tuple(space.shape), bounds is not None
        self.log_std = None if state_std else nn.Parameter(torch.full((dims,), float(log_std_init)))
        if bounds is not None:
            low, high = bounds
            self.register_buffer("middle", (high + low) / 2, persistent=False)
            self.register_buffer("half_width", (high - low) / 2, persistent=False)

    def dist(self, params: Tensor, mask: Tensor | None = None) -> DiagGaussian | SquashedGaussian:
        mean, log_std = self._split(params)
        if self.squashed:
            return SquashedGaussian(mean, log_std, self.middle, self.half_width, self.event)
        return DiagGaussian(mean, log_std, self.event)

    def noise(self, steps: int, columns: int, generator: Generator) -> Tensor:
        return normal((steps, columns, self.dims), generator, device_of(generator))

    def sample(
        self, params: Tensor, noise: Any = None, mask: Tensor | None = None, generator: Generator = None
    ) -> Tensor:
        mean, log_std = self._split(params)
        if noise is None:
            noise = normal(mean.shape, generator, mean.device)
        action = torch.addcmul(mean, noise, log_std.exp())
        if self.squashed:
            action = torch.addcmul(self.middle, self.half_width, action.tanh())
        return unflatten(action, self.event)

    @property
    def pick_array(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
        """`sample` on arrays, where the log-std is a parameter and nothing is squashed."""
        if self.log_std is None or self.squashed or len(self.event) != 1:
            return None
        std = self.log_std.detach().exp().numpy()  # it does not move while a chunk is collected
        return lambda params, noise: np.add(params, noise * std, params)

    def _split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        if self.log_std is not None:
            return params, self.log_std
        mean, log_std = params.chunk(2, dim=-1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


class StateDependentHead(Head):
    """Box with generalised state-dependent exploration (gSDE): noise is a function of the state, fixed for a
    chunk.

    Raffin, Kober & Stulp 2021 (arXiv:2005.05719), section 3: a = μ(s) + z(s)·θ, θ_ld ~ N(0, σ²_ld) drawn once
    per column and chunk, so the marginal is N(μ, z²·σ²). As in the authors' code, no gradient reaches the
    features z through the noise, and 1e-6 is added to the variance. Parameters: D means, then L features.
    """

    def __init__(self, space: spaces.Box, latent_dim: int, log_std_init: float = 0.0) -> None:
        dims = int(np.prod(space.shape))
        super().__init__(dims + latent_dim)
        self.dims, self.latent_dim, self.event = dims, latent_dim, tuple(space.shape)
        self.log_std = nn.Parameter(torch.full((latent_dim, dims), float(log_std_init)))

    def dist(self, params: Tensor, mask: Tensor | None = None) -> DiagGaussian:
        mean, latent = params.split([self.dims, self.latent_dim], dim=-1)
        variance = latent.detach().square() @ (2.0 * self.log_std).exp() + GSDE_EPSILON
        return DiagGaussian(mean, 0.5 * variance.log(), self.event)

    def noise(self, steps: int, columns: int, generator: Generator) -> Tensor:
        """`[T, B, L, D]`: one matrix per column, the same at every step (a view, not T copies)."""
        matrix = normal((1, columns, self.latent_dim, self.dims), generator, device_of(generator))
        return matrix.expand(steps, -1, -1, -1)

    def sample(
        self, params: Tensor, noise: Any = None, mask: Tensor | None = None, generator: Generator = None
    ) -> Tensor:
        """With `noise [..., L, D]` the action that this matrix gives; without, a draw from the marginal."""
        if noise is None:
            return self.dist(params).sample(generator)
        mean, latent = params.split([self.dims, self.latent_dim], dim=-1)
        deviation = (latent.unsqueeze(-2) @ (noise * self.log_std.exp())).squeeze(-2)
        return unflatten(mean + deviation, self.event)


class BetaHead(Head):
    """Box with finite bounds: 2·D parameters x, α and β = 1 + softplus(x). Chou et al. 2017 (PMLR 70:834)."""

    low: Tensor
    width: Tensor

    def __init__(self, space: spaces.Box, bounds: tuple[Tensor, Tensor]) -> None:
        super().__init__(2 * int(np.prod(space.shape)))
        self.event = tuple(space.shape)
        low, high = bounds
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("width", high - low, persistent=False)

    def dist(self, params: Tensor, mask: Tensor | None = None) -> Beta:
        alpha, beta = (1.0 + F.softplus(params)).chunk(2, dim=-1)
        return Beta(alpha, beta, self.low, self.width, self.event)

    def noise(self, steps: int, columns: int, generator: Generator) -> None:
        return None


class JointHead(Head):
    """Dict or Tuple actions: the parameters of all parts side by side, parts independent given the
    observation.
    """

    def __init__(self, heads: list[Head], keys: list[str] | None) -> None:
        super().__init__(sum(head.param_dim for head in heads))
        self.heads = nn.ModuleList(heads)
        self.keys = keys
        self._widths = [head.param_dim for head in heads]

    def dist(self, params: Tensor, mask: Tensor | None = None) -> JointDistribution:
        pieces = zip(self._parts, params.split(self._widths, dim=-1), strict=True)
        parts: list[Distribution] = [head.dist(piece) for head, piece in pieces]
        return JointDistribution(self._tree(parts))

    def noise(self, steps: int, columns: int, generator: Generator) -> tuple[Tree, ...] | None:
        """One tree per part; None (nothing is drawn) if some part's randomness has no fixed size."""
        if any(isinstance(part, BetaHead) for part in self.modules()):
            return None
        return tuple(head.noise(steps, columns, generator) for head in self._parts)

    def sample(
        self, params: Tensor, noise: Any = None, mask: Tensor | None = None, generator: Generator = None
    ) -> Tree:
        noises = [None] * len(self.heads) if noise is None else noise
        pieces = zip(self._parts, params.split(self._widths, dim=-1), noises, strict=True)
        return self._tree([head.sample(piece, own, None, generator) for head, piece, own in pieces])

    @property
    def _parts(self) -> list[Head]:
        return cast("list[Head]", list(self.heads))

    def _tree(self, values: list[Any]) -> Any:
        return tuple(values) if self.keys is None else dict(zip(self.keys, values, strict=True))


def build_head(
    space: Space[Any],
    distribution: DistributionName = "auto",
    log_std_init: float = 0.0,
    *,
    latent_dim: int | None = None,
    state_std: bool = False,
    where: str = "agent.policy",
) -> Head:
    """The head of a policy's action space.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of them, as the policy sees it.
        distribution: of Box actions; auto: an unbounded Gaussian.
        log_std_init: initial log-std of Gaussians.
        latent_dim: features L of state-dependent exploration; None: independent noise.
        state_std: Gaussians take their log-std from the network.
        where: config path for messages.

    Raises:
        ConfigError: an impossible combination, such as a squashed distribution without finite bounds.
    """
    options: dict[str, Any] = {
        "distribution": distribution,
        "log_std_init": log_std_init,
        "state_std": state_std,
    }
    if latent_dim is not None and not (
        isinstance(space, spaces.Box) and distribution in ("auto", "gaussian")
    ):
        raise ConfigError(
            f"gsde needs Box actions and an unsquashed Gaussian; got {describe(space)}, {distribution}.",
            path=f"{where}.gsde",
            hint="set gsde: false.",
        )
    if isinstance(space, spaces.Dict):
        keys = sorted(space.spaces)
        return JointHead([build_head(space.spaces[key], **options, where=where) for key in keys], keys)
    if isinstance(space, spaces.Tuple):
        return JointHead([build_head(child, **options, where=where) for child in space.spaces], None)
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(space)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead(space)
    if isinstance(space, spaces.MultiBinary):
        return MultiBernoulliHead(space)
    if not isinstance(space, spaces.Box):
        raise ConfigError(f"no policy can act in a {type(space).__name__} space.", path="environment.id")
    if latent_dim is not None:
        return StateDependentHead(space, latent_dim, log_std_init)
    if distribution in ("auto", "gaussian"):
        return GaussianHead(space, log_std_init, state_std)
    bounds = _finite_bounds(space, distribution, where)
    return (
        BetaHead(space, bounds)
        if distribution == "beta"
        else GaussianHead(space, log_std_init, state_std, bounds)
    )


def _finite_bounds(space: spaces.Box, distribution: str, where: str) -> tuple[Tensor, Tensor]:
    low, high = (torch.as_tensor(bound.reshape(-1), dtype=torch.float32) for bound in (space.low, space.high))
    # bounds of the dtype's own range, which some environments write for "none", are infinitely far apart too
    loose = (~(high - low).isfinite()).nonzero().flatten().tolist()
    if loose:
        first = loose[0]
        more = f" (and {len(loose) - 1} more)" if len(loose) > 1 else ""
        raise ConfigError(
            f"{distribution} needs finite bounds in every action dimension; dimension {first}{more} of "
            f"{describe(space)} has [{low[first].item()}, {high[first].item()}].",
            path=f"{where}.distribution",
            hint="use gaussian, which is unbounded, or give the environment finite action bounds.",
        )
    return low, high


def device_of(generator: Generator) -> torch.device:
    """Where a generator's numbers are made."""
    return torch.device("cpu") if generator is None else generator.device
