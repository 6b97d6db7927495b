"""What a bonus is divided by, so that one weight means the same on every task."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from uniarena.nets.normalizer import Moments
from uniarena.ops.returns import running_return
from uniarena.ops.statistics import Metrics, mean_and_std
from uniarena.optim import Minimize, OptimizerConfig, build_optimizer


class BonusScale(nn.Module):
    """Divides raw novelty by a statistic of its own.

    Args:
        kind: `running_std`, the standard deviation of the running discounted sum of novelty (of each column, over
            the ends of episodes: Burda et al. 2018, section 2.4); of sampled rows, which have no column, the root
            mean square of all novelty so far. `fixed`, nothing. `learned`, exp(s) of one learned number s, which
            descends mean(novelty · exp(−s)) + s. That is least where exp(s) = mean(novelty), so that the mean bonus
            stays near 1 while novelty shrinks. s starts at the first chunk's log mean and touches nothing else.
        gamma: running_std: discount of the sum.
        learning_rate: learned: of s.
    """

    def __init__(self, kind: str, gamma: float, learning_rate: float) -> None:
        super().__init__()
        self.kind, self.gamma = kind, gamma
        self.moments = Moments(1)
        self.log_scale = nn.Parameter(torch.zeros(()))
        named = [("log_scale", self.log_scale)]
        self._optimizer = build_optimizer(named, OptimizerConfig(), learning_rate, "agent.intrinsic")
        self._returns: Tensor | None = None
        self._started = False

    @torch.no_grad()
    def forward(self, novelty: Tensor, valid: Tensor) -> Tensor:
        """`[T, B]` of a chunk or `[M]` of sampled rows, 0 where not valid → the same, scaled.

        Call it once a chunk or sample, in order: the statistics take it in first.
        """
        return novelty / self._divisor(novelty, valid).to(novelty.dtype)

    def _divisor(self, novelty: Tensor, valid: Tensor) -> Tensor:
        if self.kind == "fixed":
            return torch.ones_like(self.log_scale)
        if self.kind == "learned":
            if not self._started:
                self.log_scale.copy_(mean_and_std(novelty, valid)[0].clamp(min=1e-8).log())
                self._started = True
            return self.log_scale.exp()
        if novelty.dim() == 1:
            self.moments.add(novelty[:, None], valid)
            return (self.moments.variance() + self.moments.mean.square() + 1e-8).sqrt()
        if self._returns is None or len(self._returns) != novelty.shape[1]:
            self._returns = torch.zeros_like(novelty[0])
        history = running_return(novelty, torch.where(valid, self.gamma, 1.0), self._returns)
        self._returns = history[-1].clone()
        self.moments.add(history.reshape(-1, 1), valid.flatten())
        return (self.moments.variance() + 1e-8).sqrt()

    def learn(self, minimize: Minimize, novelty: Tensor) -> None:
        """One step of the learned scale towards the mean `novelty`, a 0-d tensor; nothing for the other kinds."""
        if self.kind == "learned":
            minimize(self._loss, novelty, self._optimizer)

    def _loss(self, novelty: Tensor) -> tuple[Tensor, Metrics]:
        return novelty * torch.exp(-self.log_scale) + self.log_scale, {}

    def get_extra_state(self) -> dict[str, Any]:
        """What `state_dict` holds beside the tensors."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "returns": self._returns,
            "started": self._started,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Called by `load_state_dict`."""
        self._optimizer.load_state_dict(state["optimizer"])
        returns = state["returns"]
        self._returns = None if returns is None else returns.to(self.log_scale.device, copy=True)
        self._started = bool(state["started"])
