"""What the off-policy actor-critics share: their configuration, whose turn it is, and names of metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from uniarena.batch import Tree, tree_leaves, tree_map
from uniarena.config import Between, ConfigError, config
from uniarena.ops.statistics import Metrics
from uniarena.optim import GradNorm, LearningRate, Optimizer, OptimizerConfig, PrecisionName, build_optimizer
from uniarena.policies.heads import Head
from uniarena.policies.network import UserNetwork
from uniarena.values.ensemble import EnsembleSpec

Positive = Annotated[float, Between(0, above=True)]


@config
class ActorCriticConfig:
    """A policy and an ensemble of critics, learned from replay. The defaults are SAC's.

    Haarnoja et al. 2018 (arXiv:1812.05905), table 1; warm-up as in the authors' code.
    """

    learning_rate: LearningRate = 3e-4
    policy_learning_rate: LearningRate | None = None  # null: learning_rate
    gamma: Annotated[float, Between(0, 1)] = 0.99  # discount per environment step
    batch_size: Annotated[int, Between(1)] = 256  # rows of a gradient step
    n_step: Annotated[int, Between(1)] = 1  # rewards summed before bootstrapping
    learning_starts: Annotated[int, Between(0)] = 1000  # env steps of random actions before the first update
    train_every_env_steps: Annotated[int, Between(1)] = 1  # env steps between two rounds of updates
    updates_per_env_step: Annotated[float, Between(0)] = 1.0  # updates of the critics for every env step
    tau: Annotated[float, Between(0, 1, above=True)] = 0.005  # share of the way that targets move
    target_update_updates: Annotated[int, Between(1)] | None = (
        None  # updates between two moves of the targets; null: 1, with td3 and ddpg those of the policy
    )
    policy_delay: Annotated[int, Between(1)] = 1  # updates between two of the policy
    value_delay: Annotated[int, Between(1)] = 1  # updates between two of the critics
    n_critics: Annotated[int, Between(1)] = 2
    subset_size: Annotated[int, Between(1)] | None = None  # critics drawn for each target; null: all
    n_targets: Annotated[int, Between(1)] = 1  # target networks of each critic: the last states of one
    target_reduce: Literal["min", "mean"] = "min"  # of the critics and their targets, in targets
    policy_reduce: Literal["min", "mean", "first"] = "min"  # of the critics, in the policy's loss
    layer_norm: bool = False  # in the critics' hidden layers
    dropout: float = 0.0  # share of the critics' hidden units dropped, in targets and losses
    target_clip: tuple[float, float] | None = None  # least and largest bootstrapped target; null: free
    td_clip: Positive | None = None  # TD errors beyond it count linearly (Huber); null: squared throughout
    max_grad_norm: GradNorm = None  # longest global gradient, or {policy: …, value: …}; null: no clipping
    precision: PrecisionName = "fp32"  # of losses and their gradients: fp32, bf16, fp16
    optimizer: OptimizerConfig = OptimizerConfig()

    def __post_init__(self) -> None:
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"got {self.dropout}; expected a share below 1.", path="dropout")
        if self.target_clip is not None and not self.target_clip[0] < self.target_clip[1]:
            raise ConfigError(f"got {list(self.target_clip)}; expected [least, largest].", path="target_clip")
        if self.subset_size is not None and self.subset_size > self.n_critics:
            raise ConfigError(
                f"got {self.subset_size}, but there are {self.n_critics} critics.",
                path="subset_size",
                hint="draw at most n_critics of them.",
            )
        if self.policy_delay > 1 and self.value_delay > 1:
            raise ConfigError(
                f"got {self.value_delay} beside policy_delay={self.policy_delay}: some updates would change nothing.",
                path="value_delay",
                hint="delay one of the two.",
            )

    @property
    def critics(self) -> EnsembleSpec:
        """The critics to build."""
        return EnsembleSpec(self.n_critics, 1, self.layer_norm, self.dropout)


class Turns(nn.Module):
    """Whose turn an update is: the critics' every `value_delay`-th, the policy's every `policy_delay`-th."""

    def __init__(self, cfg: ActorCriticConfig) -> None:
        super().__init__()
        self.value_delay, self.policy_delay, self.updates = cfg.value_delay, cfg.policy_delay, 0

    def next(self) -> tuple[bool, bool]:
        """Count one update: whether it is for the critics, and whether it is for the policy."""
        self.__dict__["updates"] = updates = self.updates + 1  # a module's own way to set it costs more
        return updates % self.value_delay == 0, updates % self.policy_delay == 0

    def get_extra_state(self) -> dict[str, int]:
        return {"updates": self.updates}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.updates = int(state["updates"])


def build_part_optimizer(
    prefix: str, part: nn.Module, cfg: ActorCriticConfig, learning_rate: LearningRate | None = None
) -> Optimizer:
    """The optimiser of one part of the model; Adam's ε is torch's own 1e-8, as in the papers of this family."""
    named: Iterable[tuple[str, Any]] = ((f"{prefix}.{name}", p) for name, p in part.named_parameters())
    return build_optimizer(
        named, cfg.optimizer.with_eps(1e-8), cfg.learning_rate if learning_rate is None else learning_rate
    )


def named(part: str, metrics: Metrics) -> Metrics:
    """What one `minimize` reports, told apart from that of other parts: `value_loss`, `value_grad_norm`."""
    own = ("loss", "grad_norm")
    return {f"{part}_{name}" if name in own else name: value for name, value in metrics.items()}


def draw_noise(head: Head, like: Tree, rng: torch.Generator) -> Tree | None:
    """One action's noise for each row of the tree `like`, on its device; None where its size is not fixed."""
    first = tree_leaves(like)[0]
    noise = head.noise(1, len(first), rng)
    return None if noise is None else tree_map(lambda leaf: leaf[0].to(first.device), noise)


def draw_subset(cfg: ActorCriticConfig, rng: torch.Generator, critics: nn.Module) -> Tensor | None:
    """`[subset_size]`: the critics that one target is made with; None: all.

    Chen et al. 2021 (arXiv:2101.05982), algorithm 1.
    """
    if cfg.subset_size is None or cfg.subset_size == cfg.n_critics:
        return None
    chosen = torch.randperm(cfg.n_critics, generator=rng, device=rng.device)[: cfg.subset_size]
    return chosen.to(next(critics.parameters()).device)


def policy_subset(cfg: ActorCriticConfig, critics: nn.Module) -> Tensor | None:
    """The critics that the policy's loss asks; None: all."""
    if cfg.policy_reduce != "first" or cfg.n_critics == 1:
        return None
    return torch.zeros(1, dtype=torch.int64, device=next(critics.parameters()).device)


def with_modes(network: nn.Module) -> tuple[nn.Module, ...]:
    """The network, if it may act otherwise in training than in evaluation: ours do not."""
    return (network,) if isinstance(network, UserNetwork) else ()
