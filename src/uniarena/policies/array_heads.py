"""Log-probs and entropies of plain heads with their derivatives, on arrays: what a policy's loss needs of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from uniarena.policies.continuous import LOG_2PI
from uniarena.policies.heads import CategoricalHead, GaussianHead, Head

Array = np.ndarray


class ArrayCategorical:
    """Of `CategoricalHead`: log π(a) = z_a − log Σ exp z."""

    def __init__(self, head: CategoricalHead) -> None:
        self.width = head.param_dim
        self._first: dict[int, Array] = {}

    @property
    def able(self) -> bool:
        """Whether derivatives may be taken here."""
        return True

    def log_prob(self, params: Tensor, action: Tensor) -> tuple[Array, float]:
        """`[N, n]`, `[N]` → log-probs `[N]` and the mean entropy."""
        self._log_p: Array = torch.log_softmax(params, 1).numpy()
        self._p: Array = np.exp(self._log_p)
        count = len(self._log_p)
        first = self._first.get(count)
        if first is None:
            self._first = {count: np.arange(count) * self.width}
            first = self._first[count]
        self._at: Array = first + action.numpy()
        self._terms: Array = self._p * self._log_p
        entropy = -float(np.add.reduce(self._terms, axis=None)) / count
        return self._log_p.reshape(-1).take(self._at), entropy

    def backward(self, slope: Array, entropy_coef: float, out: Array) -> None:
        """Gradient of the parameters `[N, n]` into `out`: of Σ slope · log π(a) − entropy_coef · mean entropy.

        ∂ log π(a)/∂z_j = 1[j = a] − p_j, and ∂H/∂z_j = −p_j (log p_j + H).
        """
        np.multiply(self._p, -slope[:, None], out)
        out.reshape(-1)[self._at] += slope
        if entropy_coef:
            entropy = -np.add.reduce(self._terms, axis=1)[:, None]
            out += (self._terms + self._p * entropy) * (entropy_coef / len(out))


class ArrayGaussian:
    """Of `GaussianHead` without bounds, with a log-std σ′ of its own: log π(a) = Σ −½ z² − σ′ − ½ log 2π."""

    def __init__(self, head: GaussianHead) -> None:
        assert head.log_std is not None
        self._log_std: torch.nn.Parameter = head.log_std
        self._dims = head.dims

    @property
    def able(self) -> bool:
        """Whether derivatives may be taken here."""
        own = self._log_std
        hooked = own._backward_hooks or own._post_accumulate_grad_hooks
        return own.requires_grad and not hooked and own.device.type == "cpu"

    def log_prob(self, params: Tensor, action: Tensor) -> tuple[Array, float]:
        """`[N, D]`, `[N, …]` → log-probs `[N]` and the mean entropy."""
        log_std = self._log_std.detach().numpy()
        mean = params.numpy()
        self._inverse = np.exp(-log_std)
        self._z = (action.numpy().reshape(mean.shape) - mean) * self._inverse
        self._square = self._z * self._z
        each = float(np.add.reduce(log_std))
        log_prob = -0.5 * np.add.reduce(self._square, axis=1)
        log_prob -= np.float32(each + 0.5 * LOG_2PI * self._dims)
        return log_prob, each + 0.5 * (1.0 + LOG_2PI) * self._dims

    def backward(self, slope: Array, entropy_coef: float, out: Array) -> None:
        """As of `ArrayCategorical`; the log-std's gradient is added to what it holds.

        ∂ log π(a)/∂mean = z/std, ∂ log π(a)/∂σ′ = z² − 1, and ∂H/∂σ′ = 1.
        """
        np.multiply(self._z, self._inverse, out)
        out *= slope[:, None]
        own = np.add.reduce((self._square - 1.0) * slope[:, None], axis=0) - np.float32(entropy_coef)
        if self._log_std.grad is None:
            self._log_std.grad = torch.zeros_like(self._log_std)
        self._log_std.grad.add_(torch.from_numpy(own))


ArrayHead = ArrayCategorical | ArrayGaussian


def array_head_of(head: Head) -> ArrayHead | None:
    """The head's arrays; None where it is another one, squashed, or takes its log-std from the network."""
    if type(head) is CategoricalHead:
        return ArrayCategorical(head)
    if type(head) is GaussianHead and not head.squashed and head.log_std is not None:
        return ArrayGaussian(head)
    return None
