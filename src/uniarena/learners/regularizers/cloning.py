"""Behaviour cloning as a term: the policy is held to what data shows, while it learns from something else.

Of policies: Nair et al. 2018 (arXiv:1709.10089), sections IV-B and IV-C, and Rajeswaran et al. 2018 (arXiv:1709.10087).
Of Q-values: Hester et al. 2018 (arXiv:1704.03732), the supervised loss J_E.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from gymnasium import spaces
from torch import Tensor

from uniarena.batch import Batch
from uniarena.buffers.dataset import DatasetBuffer, DatasetConfig, misplaced
from uniarena.buffers.spec import BufferSpec
from uniarena.config import Between, config
from uniarena.data import DataError
from uniarena.learners.base import Learner
from uniarena.learners.regularizers.base import Regularizer, Setting, Weight
from uniarena.nets.leaves import leaves
from uniarena.nets.precision import as_target, widened
from uniarena.ops.actor_critic import reduce_members
from uniarena.ops.offline import action_distance, large_margin_loss
from uniarena.ops.statistics import Metrics
from uniarena.policies.action_scale import ActionScale
from uniarena.policies.continuous import SquashedGaussian
from uniarena.policies.deterministic import Deterministic, DeterministicHead
from uniarena.policies.distributions import Distribution, JointDistribution

MARGIN = 0.8
"""Hester et al. 2018, in all their experiments."""


@config
class BehaviorCloningConfig:
    """Which data, and how near."""

    data: DatasetConfig  # the demonstrations: a path, or the keys of the section `data`
    weight: Weight  # of the term; a number, or a schedule over the run
    batch_size: Annotated[int, Between(1)] = 128  # rows of data beside each step of the policy
    loss: Literal["auto", "nll", "mse"] = (
        "auto"  # -log pi(a|s), or squared distance of the mode; auto: mse of deterministic and squashed policies
    )
    margin: Annotated[float, Between(0, above=True)] | None = (
        None  # Q-learners: what every other action is to be worth less; null: 0.8
    )
    q_filter: bool = False  # only rows whose action the critics value above the policy's own


class BehaviorCloning(Regularizer):
    """-log pi(a|s) of the data's actions, their squared distance from the mode, or a large margin of Q."""

    Config: ClassVar[type] = BehaviorCloningConfig

    def __init__(self, cfg: BehaviorCloningConfig, learner: Learner, setting: Setting) -> None:
        super().__init__(cfg, learner, setting)
        model: Any = learner.model
        if model.initial_state(1) is not None:
            raise self.refusal("rows of data come one by one, and its policy has memory.")
        boxes = all(isinstance(leaf, spaces.Box) for _, leaf in leaves(setting.policy_space))
        if cfg.margin is not None and not self.by_value:
            raise self.refusal("it has a policy, and no Q-values to keep a margin between.", "margin")
        if cfg.loss != "auto" and self.by_value:
            raise self.refusal("of Q-values the loss is a large margin.", "loss")
        if cfg.loss == "mse" and not boxes:
            raise self.refusal("distances are of continuous actions.", "loss", "write nll, or leave it out.")
        if cfg.loss == "nll" and isinstance(self.policy.head, DeterministicHead):
            raise self.refusal("a deterministic policy has no log-probs.", "loss", "leave it out.")
        if cfg.q_filter and (getattr(model, "q", None) is None or getattr(model, "scale", None) is None):
            raise self.refusal("it has no critics of continuous actions to ask.", "q_filter")
        self.scale = ActionScale(setting.policy_space) if boxes else None
        self.margin = MARGIN if cfg.margin is None else cfg.margin
        self.buffer = _load(cfg, setting)

    def draw(self) -> Batch:
        return self.buffer.sample(self.setting.generator).select("obs", "action")

    def probe(self) -> Batch:
        return self.buffer.at(np.arange(min(2, self.buffer.size))).select("obs", "action")

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        if self.by_value:
            q, mask = widened(self.policy.params(batch.obs)[0]), self.policy.mask(batch.obs)
            return large_margin_loss(q, batch.action, self.margin, mask).mean(), {}
        dist = self.dist(batch.obs)
        squared = self.cfg.loss == "mse" or (self.cfg.loss == "auto" and _has_edges(dist))
        if squared and self.scale is not None:
            error = action_distance(self.scale(dist.mode()), self.scale(batch.action))
        else:
            error = -dist.log_prob(batch.action)
        if not self.cfg.q_filter:
            return error.mean(), {}
        kept = self.worse(batch, dist).to(error.dtype)
        return (error * kept).mean(), {"kept": kept.mean()}

    @as_target
    def worse(self, batch: Batch, dist: Distribution) -> Tensor:
        """`[N]` bool: whether the least critic values the data's action above the mode: the Q-filter."""
        model: Any = self.learner.model
        inputs, found = self.policy.inputs(batch.obs), []
        for action in (batch.action, dist.mode()):
            q = model.q(inputs, model.scale(action), None)
            found.append(reduce_members(q.mean(-1) if q.dim() == 3 else q, "min"))
        return found[0] > found[1]

    def describe(self) -> str:
        return self.buffer.describe()

    def state_dict(self) -> dict[str, Any]:
        return self.buffer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the same data.

        Raises:
            ConfigError: it is not the data that the state was saved with.
        """
        try:
            self.buffer.load_state_dict(state)
        except DataError as error:
            raise misplaced(error, f"{self.setting.where}.data") from error


def _load(cfg: BehaviorCloningConfig, setting: Setting) -> DatasetBuffer:
    """The data, held against the run's spaces."""
    spec = BufferSpec(
        setting.observation_space,
        setting.policy_space,
        batch_size=cfg.batch_size,
        device=setting.device,
        action_space=setting.action_space,
    )
    try:
        return DatasetBuffer(cfg.data, spec)
    except DataError as error:
        raise misplaced(error, f"{setting.where}.data") from error


def _has_edges(dist: Distribution) -> bool:
    """Whether densities grow without end at the bounds, where data is full of actions; or whether there are none."""
    parts = [dist]
    if isinstance(dist, JointDistribution):
        parts = list(dist.parts.values() if isinstance(dist.parts, dict) else dist.parts)
    return any(isinstance(part, SquashedGaussian | Deterministic) for part in parts)
