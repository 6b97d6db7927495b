"""A policy constraint: the policy is held near a frozen one, on the rows that it learns from.

Schmitt et al. 2018 (arXiv:1803.03835): kickstarting, whose cross-entropy has the gradient of the forward KL. Wu et al.
2019 (arXiv:1911.11361): the reverse one. Of deterministic policies: Fujimoto & Gu 2021 (arXiv:2106.06860), eq. 3.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import Tensor

from uniarena.batch import Batch, tree_map
from uniarena.checkpoint import CheckpointError
from uniarena.config import ConfigError, config
from uniarena.envs.spaces import describe, leaf_spaces
from uniarena.learners.base import Learner
from uniarena.learners.regularizers.base import Regularizer, Setting, Weight, digest
from uniarena.nets.leaves import example
from uniarena.nets.precision import as_target
from uniarena.ops.offline import action_distance
from uniarena.ops.statistics import Metrics, masked_mean
from uniarena.policies.action_scale import ActionScale
from uniarena.policies.deterministic import Deterministic
from uniarena.policies.distributions import Distribution, JointDistribution
from uniarena.values.q_model import GreedyHead


@config
class PolicyConstraintConfig:
    """Which policy, and how near."""

    to: str  # folder of a run or a checkpoint whose policy is stayed near to
    weight: Weight  # of the term; a number, or a schedule over the run
    direction: Literal["reverse", "forward"] = (
        "reverse"  # KL(policy | reference), or KL(reference | policy): distillation, kickstarting
    )


class PolicyConstraint(Regularizer):
    """The KL divergence in nats from or to a frozen policy; of deterministic policies the squared distance of actions.

    Policies with memory are followed through the sequences that their learner takes; the frozen one has none.
    """

    Config: ClassVar[type] = PolicyConstraintConfig

    def __init__(self, cfg: PolicyConstraintConfig, learner: Learner, setting: Setting) -> None:
        super().__init__(cfg, learner, setting)
        if self.by_value:
            raise self.refusal("it learns Q-values, and no policy to compare.", hint="use behavior_cloning.")
        if learner.model.initial_state(1) is not None and "log_prob" not in learner.records:
            raise self.refusal("its policy has memory, and its rows have no states.")
        self.reference = self._load()
        dist = self.dist(self.probe().obs)
        self.scale = ActionScale(setting.policy_space) if isinstance(dist, Deterministic) else None
        self._check_kinds(dist)

    def _load(self) -> Any:
        setting, where = self.setting, f"{self.setting.where}.to"
        try:
            agent = setting.load(self.cfg.to)
        except CheckpointError as error:
            raise ConfigError(str(error), path=where, hint="give a run's or a checkpoint's folder.") from None
        model = agent.model.to(setting.device).requires_grad_(False).eval()
        pairs = (
            (agent.observation_space, setting.observation_space),
            (
                agent.action_map.policy_space,
                setting.policy_space,
            ),
        )
        for (found, wanted), what in zip(pairs, ("observations", "actions"), strict=True):
            if _layout(found) != _layout(wanted) or (what == "actions" and found != wanted):
                raise ConfigError(
                    f"the {what} of {self.cfg.to} are {describe(found)}, and the run's are {describe(wanted)}.",
                    path=where,
                    hint="name a run in the same environment, wrappers included.",
                )
        if model.initial_state(1) is not None:
            raise ConfigError(
                f"the policy of {self.cfg.to} has memory.", path=where, hint="name one without memory."
            )
        return model.policy

    def _check_kinds(self, dist: Distribution) -> None:
        """Whether there is a divergence of the two."""
        if self.scale is not None:
            return
        other, setting = self.towards(self.probe().obs), self.setting
        greedy = isinstance(self.reference.head, GreedyHead) and self.cfg.direction == "reverse"
        if greedy or not _alike(dist, other):
            kinds = f"{type(other).__name__}{' of one action' if greedy else ''}, and here it is"
            raise ConfigError(
                f"the policy of {self.cfg.to} is a {kinds} a {type(dist).__name__}: there is no such divergence.",
                path=f"{setting.where}.{'direction' if greedy else 'to'}",
                hint="write direction: forward."
                if greedy
                else "set agent.policy.distribution as it was there.",
            )

    @as_target
    def towards(self, obs: Any) -> Distribution:
        """What the frozen policy says."""
        found: Distribution = self.reference(obs)[0]
        return found

    def probe(self) -> Batch:
        obs = example(self.setting.observation_space, 2)
        return Batch((2,), obs=tree_map(lambda leaf: leaf.to(self.setting.device), obs))

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        memory = (tree_map(lambda leaf: leaf[0], batch.state), batch.is_first) if "state" in batch else ()
        own, other = self.dist(batch.obs, *memory), self.towards(batch.obs)
        if self.scale is not None:
            gap = action_distance(self.scale(own.mode()), self.scale(other.mode()))
        else:
            gap = own.kl(other) if self.cfg.direction == "reverse" else other.kl(own)
        return masked_mean(gap, batch.get("valid")), {}

    def describe(self) -> str:
        return f"near the policy of {self.cfg.to}"

    def state_dict(self) -> dict[str, Any]:
        return {"reference": digest(self.reference.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the same policy.

        Raises:
            ConfigError: it is another one.
        """
        if state["reference"] != self.state_dict()["reference"]:
            raise ConfigError(
                f"the policy of {self.cfg.to} is not the one that the run was held near before.",
                path=f"{self.setting.where}.to",
                hint="name one checkpoint of it, which stays as it is; or begin a new run.",
            )


def _layout(space: Any) -> list[Any]:
    return [(path, leaf.shape, leaf.dtype) for path, leaf in leaf_spaces(space)]


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, JointDistribution) and isinstance(other, JointDistribution):
        pairs = zip(one._list, other._list, strict=True)
        return all(_alike(a, b) for a, b in pairs)
    return type(one) is type(other)
