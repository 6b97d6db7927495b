"""The environment contract: always batched, B columns wide, arrays or tensors in and out.

CPU environments speak NumPy, tensor environments (GPU simulators, JAX by dlpack) speak torch and never leave their
device. Whatever an environment library calls autoreset is normalised by its adapter, so that downstream nobody meets a
lost final observation or a row that was only a reset without `valid=False`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from gymnasium import Space

from uniarena.batch import Tree
from uniarena.envs.actions import ActionMap

Array = np.ndarray | torch.Tensor
RESTARTS = "worker_restarts"
"""In `Step.info`: how often a worker process was started again since the step before, at its first column."""


class Final(NamedTuple):
    """True last observations of the columns that ended in this step.

    Attributes:
        index: `[K]` int64, the columns.
        obs: tree of `[K, …]`, owned by the receiver (never overwritten by the environment).
    """

    index: Any
    obs: Tree


class Step(NamedTuple):
    """What one step of all columns gave. Arrays may be overwritten by the next `step` or `reset`.

    Attributes:
        obs: tree of `[B, …]`, the input of the next row.
        reward: `[B]` float32, raw.
        terminated, truncated: `[B]` bool. Terminated: the future is worth nothing. Truncated: it was only cut off.
        is_first: `[B]` bool, whether `obs` is the first of an episode.
        valid: `[B]` bool; False where this step was only a reset or the agent is dead. None: all are valid.
        final: final observations of the columns that ended; None where none did or `next_obs` is given.
        next_obs: dense true successors, tree of `[B, …]`; tensor environments only.
        info: numeric arrays `[B]`: `metrics/<name>`, `is_success`, `lives`, `episode_return` (NaN where a column said
            nothing), `episode_goes_on` (1 at an end for learning only).
        lost: `[B]` bool: the episode broke off because its simulator failed, and its return means nothing. Where the
            step itself was lost, `valid` is False: nothing follows from its action, and the row before ends with `obs`
            of this one. Where only what comes after it was, the column is truncated with a final observation. None:
            nothing was lost.
    """

    obs: Tree
    reward: Any
    terminated: Any
    truncated: Any
    is_first: Any
    valid: Any | None = None
    final: Final | None = None
    next_obs: Tree | None = None
    info: dict[str, Any] = {}  # noqa: RUF012  (never written to)
    lost: Any | None = None


@runtime_checkable
class Env(Protocol):
    """B columns stepped together.

    Attributes:
        observation_space, action_space: of one column, Gymnasium spaces. The observation space already holds the
            reserved leaf `action_mask` where masks exist.
        action_map: the policy's own action → the environment's (start, bounds, dtype).
        num_envs: number of environment instances.
        device: where observations live.
        tensor: True when arrays are torch tensors.
        has_final_obs: False where the simulator loses the observation that an episode ended with.
        env_id: the name it was made from.
    """

    observation_space: Space[Any]
    action_space: Space[Any]
    action_map: ActionMap
    num_envs: int
    device: torch.device
    tensor: bool
    has_final_obs: bool
    env_id: str

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None, mask: Any | None = None
    ) -> Tree:
        """Begin episodes (of the columns in `mask` `[B]` bool, or of all) → observations `[B, …]` of all columns."""

    def step(self, action: Tree) -> Step:
        """One step with the policy's own actions `[B, …]`."""

    def close(self) -> None: ...

    def render(self) -> np.ndarray | None:
        """An RGB picture `[H, W, 3]` uint8 of the first environment, where it can draw."""

    def state_dict(self) -> dict[str, Any] | None:
        """The native state as plain data, or None where the environment cannot give it."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def get_attr(self, name: str) -> list[Any]:
        """Attribute `name` of each base environment."""

    def set_attr(self, name: str, value: Any) -> None: ...

    def call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Method `name` of each base environment."""
