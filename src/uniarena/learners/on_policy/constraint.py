"""How far one update may move the policy: clip range, KL penalty, and when the epochs over a rollout end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from uniarena.learners.on_policy.config import PolicyGradientConfig
from uniarena.ops.policy_gradient import restless
from uniarena.optim import Optimizer, ScheduleConfig, make_schedule
from uniarena.optim.schedules import CLIP_RANGE, EPOCH_KL, PENALTY, KLAdaptive, KLRule
from uniarena.registry import lookup

FAR = 1.5
"""A KL of so many clip ranges is high, and of so many `target_kl` ends the epochs."""
SHRINK_CLIP, LEAST_CLIP = 0.8, 0.1
LOWER_RATE, LEAST_RATE = 1.0 / 1.5, 0.01


class PolicyConstraint(nn.Module):
    """The clip range and the KL penalty of one learner, and its reactions to the KL and the loss of an update.

    Call `begin` before an update, `after_step` after each minibatch, `after_epoch` after each pass.

    Args:
        cfg: the learner's.

    Attributes:
        shrunk: what `on_high_kl: shrink_clip` has made of the clip range, as a factor.
        epochs: passes of this update so far.
        follows: whether something here, or the learning rate, moves with the KL.
    """

    def __init__(self, cfg: PolicyGradientConfig) -> None:
        super().__init__()
        self.cfg, self.shrunk = cfg, 1.0
        self._clip = _value(cfg.clip_range, CLIP_RANGE, cfg.target_kl, "learner.clip_range")
        self._penalty = _value(cfg.kl_coef, PENALTY, cfg.target_kl, "learner.kl_coef")
        rate = cfg.learning_rate if cfg.optimizer.lr is None else cfg.optimizer.lr
        self.follows = any(_adaptive(x) for x in (cfg.clip_range, cfg.kl_coef, rate))
        self.register_load_state_dict_pre_hook(_without_state)
        self.begin()

    def clip_range(self, progress: float) -> float:
        """The present clip range."""
        own = self._clip
        return (own.value if isinstance(own, KLAdaptive) else own(progress)) * self.shrunk

    def kl_coef(self, progress: float) -> float:
        """The present weight of the KL penalty."""
        own = self._penalty
        return own.value if isinstance(own, KLAdaptive) else own(progress)

    def begin(self) -> None:
        """An update begins."""
        self.epochs, self._reacted = 0, False
        self._losses: list[float] = []
        self._steps: list[Tensor] = []

    def after_step(self, metrics: dict[str, Tensor], clip_range: float, optimizer: Optimizer) -> bool:
        """Whether the epochs end here; the step that showed it is kept.

        Args:
            metrics: of the minibatch.
            clip_range: the present one.
            optimizer: of the policy.
        """
        cfg = self.cfg
        if cfg.stop_on_loss != "never":
            self._steps.append(metrics["loss"])
        # 1.5 × and an estimate per minibatch, as Stable-Baselines3 does.
        if cfg.target_kl is not None and float(metrics["kl"]) > FAR * cfg.target_kl:
            return True
        if cfg.on_high_kl == "warn" or self._reacted or float(metrics["kl"]) <= FAR * clip_range:
            return False
        if cfg.on_high_kl == "stop_epoch":
            return True
        self._reacted = True  # once an update
        if cfg.on_high_kl == "shrink_clip":
            self.shrunk = max(LEAST_CLIP, self.shrunk * SHRINK_CLIP)
        elif optimizer.factor * LOWER_RATE >= LEAST_RATE:
            optimizer.scale(LOWER_RATE)
        return False

    def after_epoch(self, optimizer: Optimizer, last: bool, kl: Tensor | None = None) -> bool:
        """Whether the epochs end here.

        Args:
            optimizer: of the policy.
            last: there is no further epoch.
            kl: how far the policy is by now, where something follows it: learning rates, and at the last epoch all.
        """
        self.epochs += 1
        stop = False
        if self.cfg.stop_on_loss != "never":
            self._losses.append(float(torch.stack(self._steps).mean()))
            self._steps = []
            stop = restless(self._losses, self.cfg.stop_on_loss)
        if kl is not None:
            figures = {EPOCH_KL: float(kl)}
            optimizer.follow(figures)
            for own in (self._clip, self._penalty) if last or stop else ():
                if isinstance(own, KLAdaptive):
                    own.see(figures)
        return stop

    def get_extra_state(self) -> dict[str, Any]:
        values = {"clip": self._clip, "penalty": self._penalty}
        kept = {name: own.value for name, own in values.items() if isinstance(own, KLAdaptive)}
        return {"shrunk": self.shrunk, **kept}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.shrunk = float(state["shrunk"])
        for name, own in (("clip", self._clip), ("penalty", self._penalty)):
            if isinstance(own, KLAdaptive) and name in state:
                own.value = float(state[name])


def _without_state(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Checkpoints from before there was a constraint have no state of it: it begins as it is."""
    state.setdefault(f"{prefix}_extra_state", module.get_extra_state())


def _adaptive(value: Any) -> bool:
    return isinstance(value, ScheduleConfig) and lookup("schedule", value.type) is KLAdaptive


def _value(value: float | ScheduleConfig, rule: KLRule, target_kl: float | None, path: str) -> Any:
    """A number that moves: by the KL, or by the progress of the run."""
    if _adaptive(value):
        return KLAdaptive(value, rule, target_kl, path)  # type: ignore[arg-type]
    return make_schedule(value, path)
