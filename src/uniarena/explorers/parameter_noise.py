"""Parameter noise: a perturbed copy of the policy acts, the same for many steps, so that exploration is consistent."""

from __future__ import annotations

import copy
import math
from typing import Annotated, Any, ClassVar

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional as F

from uniarena.batch import Batch, Tree, tree_map
from uniarena.config import Between, config
from uniarena.explorers.base import Explorer, ExplorerConfig
from uniarena.explorers.gaussian_noise import action_scale
from uniarena.policies.frozen import FrozenPolicy
from uniarena.policies.noise import normal

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


@config
class ParameterNoiseConfig(ExplorerConfig):
    """Plappert et al. 2018 (arXiv:1706.01905), section 3 and appendix B."""

    sigma: Annotated[float, Between(0, above=True)] = 0.1  # first standard deviation of the perturbation
    target_distance: Annotated[float, Between(0, 1, above=True)] = (
        0.1  # wanted distance of the behaviour: of Box actions in half widths; of discrete ones as ε of ε-greedy
    )
    adaptation: Annotated[float, Between(1)] = 1.01  # factor on sigma at each redraw, towards the distance
    redraw_env_steps: Annotated[int, Between(1)] = 200  # env steps that one perturbation lasts


class ParameterNoise(Explorer):
    """Acts by the mode of a policy whose parameters are θ + σ · ε, ε ~ N(0, 1) drawn anew every so often.

    ε stays while θ learns, and all columns share it; normalisation layers are left alone. σ follows the distance of the
    perturbed from the unperturbed policy on the last observations: root mean square of Box actions, KL divergence of
    softmax(Q) for discrete ones. Redraws happen at chunk boundaries.
    """

    Config: ClassVar[type] = ParameterNoiseConfig

    def __init__(self, cfg: Any, policy_space: Space[Any] | None = None, warmup: int = 0) -> None:
        super().__init__(cfg, policy_space, warmup)
        discrete = isinstance(policy_space, spaces.Discrete)
        self.scale = None if discrete else action_scale(policy_space, "parameter_noise")
        self.sigma: float = cfg.sigma
        self._epsilon: list[Tensor] | None = None
        self._drawn_at: int | None = None  # env steps
        self._seen: Tree | None = None  # observations of the last step, until they were used
        self._perturbed: FrozenPolicy | None = None

    def chunk_noise(
        self, policy: FrozenPolicy, steps: int, columns: int, generator: torch.Generator
    ) -> Tree | None:
        """Redraws the perturbation where its time is over, and lays it over the present parameters."""
        with torch.inference_mode(False), torch.no_grad():
            # A sampler may ask twice before a chunk, the first time to learn the shape of an action: what counts is
            # drawn last, and σ moves once.
            if self._drawn_at != self.env_steps and self._due():
                self._adapt(policy)
            if self._drawn_at == self.env_steps or self._due():
                shapes = [p.shape for p in _parameters(policy.network)]
                self._epsilon = [normal(shape, generator, generator.device) for shape in shapes]
                self._drawn_at = self.env_steps
            self._apply(policy)
        return super().chunk_noise(policy, steps, columns, generator)

    def chunk_act(
        self,
        policy: FrozenPolicy,
        obs: Tree,
        state: Tree | None,
        is_first: Tensor | None,
        noise: Tree | None,
        generator: torch.Generator | None,
    ) -> tuple[Tree, Tree | None]:
        """Remembers what the distance will be measured on."""
        with torch.inference_mode(False):
            self._seen = tree_map(lambda leaf: leaf.clone(), obs)
        return super().chunk_act(policy, obs, state, is_first, noise, generator)

    def _due(self) -> bool:
        return self._drawn_at is None or self.env_steps >= self._drawn_at + self.cfg.redraw_env_steps

    def _apply(self, policy: FrozenPolicy) -> FrozenPolicy:
        """The perturbed policy; head and observation statistics are the live ones."""
        if self._perturbed is None:
            network = copy.deepcopy(policy.network)
            self._perturbed = type(policy)(network, policy.head, policy.normalizer)
        live, mine = _parameters(policy.network), _parameters(self._perturbed.network)
        torch._foreach_copy_(mine, live)
        if self._epsilon is not None:
            self._epsilon = [e.to(p.device) for e, p in zip(self._epsilon, mine, strict=True)]
            torch._foreach_add_(mine, self._epsilon, alpha=self.sigma)
        return self._perturbed

    def _adapt(self, policy: FrozenPolicy) -> None:
        """σ up where the last perturbation changed too little of the behaviour, down where it changed too much."""
        if self._seen is None or self._epsilon is None:
            return
        distance, wanted = self._distance(policy, self._apply(policy), self._seen)
        self.sigma *= self.cfg.adaptation if distance < wanted else 1.0 / self.cfg.adaptation

    def _distance(self, policy: FrozenPolicy, perturbed: FrozenPolicy, obs: Tree) -> tuple[float, float]:
        """How far the perturbed policy is, and how far it should be."""
        wanted: float = self.cfg.target_distance
        if self.scale is not None:
            a, b = (self.scale(one.mode(obs)[0]) for one in (policy, perturbed))
            return float((a - b).square().mean().sqrt()), wanted
        p, q = (F.log_softmax(one.params(obs)[0], dim=-1) for one in (policy, perturbed))
        divergence = float((p.exp() * (p - q)).sum(-1).mean())
        return divergence, -math.log(1.0 - wanted + wanted / p.shape[-1])

    def noise(
        self, policy: FrozenPolicy, steps: int, columns: int, generator: torch.Generator
    ) -> Tree | None:
        """None: the perturbation is the noise."""
        return None

    def act(
        self,
        policy: FrozenPolicy,
        obs: Tree,
        state: Tree | None,
        is_first: Tensor | None,
        noise: Tree | None,
        generator: torch.Generator | None,
    ) -> tuple[Tree, Tree | None]:
        return (self._perturbed or self._apply(policy)).mode(obs, state, is_first)

    def behaviour_log_prob(
        self, policy: FrozenPolicy, rows: Batch, state: Tree | None = None
    ) -> Tensor | None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {
            "sigma": self.sigma,
            "drawn_at": self._drawn_at,
            "epsilon": self._epsilon,
            "seen": self._seen,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sigma, self._drawn_at = float(state["sigma"]), state["drawn_at"]
        self._epsilon, self._seen, self._perturbed = state["epsilon"], state["seen"], None


def _parameters(network: nn.Module) -> list[Tensor]:
    """What is perturbed, in a stable order."""
    return [
        p.detach()
        for module in network.modules()
        if not isinstance(module, NORMS)
        for p in module.parameters(recurse=False)
    ]
