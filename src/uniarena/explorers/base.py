"""Explorer: how an action is picked while learning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import torch
from gymnasium import Space
from torch import Tensor

from uniarena.batch import Batch, Tree, tree_map
from uniarena.config import Between, config
from uniarena.envs.spaces import MASK
from uniarena.explorers.uniform import UniformActions
from uniarena.policies.frozen import FrozenPolicy

WARM = "warm-up"
"""Key of a chunk's noise under which its random actions stand."""


@config
class ExplorerConfig:
    """What every explorer has."""

    warmup: Annotated[int, Between(0)] | None = (
        None  # env steps of uniformly random actions at the start of a run; null: learner.learning_starts
    )


class Explorer(ABC):
    """Turns a policy into behaviour, after a warm-up of uniformly random (legal) actions.

    A subclass implements `noise`, `act` and `behaviour_log_prob`, and knows nothing of the warm-up; whoever
    acts calls `chunk_noise` and `chunk_act`. The warm-up is a function of `env_steps` alone, so a resumed run
    does not repeat it. Stateless unless a subclass says otherwise.

    Args:
        cfg: an instance of the class's `Config`.
        policy_space: the actions as the policy gives them.
        warmup: env steps of random actions where the config has none of its own: the learner's
            `learning_starts`.

    Attributes:
        env_steps: env steps of the run at the beginning of the chunk.
        progress: fraction of the run that is done by then.
        warmup: env steps of random actions.
        parts: processes among which the columns are spread; a row counts for all of them.

    Raises:
        ConfigError: a warm-up in a space without finite bounds.
    """

    has_log_prob: ClassVar[bool] = False  # whether `behaviour_log_prob` gives numbers once warmed up

    def __init__(self, cfg: Any, policy_space: Space[Any] | None = None, warmup: int = 0) -> None:
        self.cfg, self.policy_space = cfg, policy_space
        own = getattr(cfg, "warmup", None)
        self.warmup: int = warmup if own is None else own
        self.env_steps, self.progress, self.parts = 0, 0.0, 1
        self._uniform: UniformActions | None = None
        if self.warmup > 0:
            if policy_space is None:
                raise ValueError(f"a warm-up of {self.warmup} env steps needs the policy's action space.")
            self._uniform = UniformActions(policy_space, "agent.explorer.warmup")

    def set_clock(self, env_steps: int, progress: float) -> None:
        """Where the run stands; called before each chunk. Schedules move here, and only here."""
        self.env_steps, self.progress = env_steps, progress

    @property
    def warming_up(self) -> bool:
        """Whether the next chunk begins with random actions."""
        return self.env_steps < self.warmup

    # -- what whoever acts calls ----------------------------------------------------------------------------
    def chunk_noise(
        self, policy: FrozenPolicy, steps: int, columns: int, generator: torch.Generator
    ) -> Tree | None:
        """What `noise` draws, and the random actions of those rows that are part of the warm-up.

        Row t of a chunk counts as env step `env_steps + t · columns · parts`.
        """
        rows = min(steps, -(-(self.warmup - self.env_steps) // (columns * self.parts)))
        if rows <= 0 or self._uniform is None:
            return self.noise(policy, steps, columns, generator)
        random = self._uniform.noise(steps, columns, generator)
        if rows == steps:
            return {WARM: random}
        warm = torch.arange(steps, device=generator.device).lt(rows)[:, None].expand(steps, columns)
        own = self.noise(policy, steps, columns, generator)
        return {WARM: random, "rows": warm, **({} if own is None else {"own": own})}

    def chunk_act(
        self,
        policy: FrozenPolicy,
        obs: Tree,
        state: Tree | None,
        is_first: Tensor | None,
        noise: Tree | None,
        generator: torch.Generator | None,
    ) -> tuple[Tree, Tree | None]:
        """`act`, or a random action; `noise` is one step's part of what `chunk_noise` gave."""
        if not isinstance(noise, dict) or WARM not in noise:
            return self.act(policy, obs, state, is_first, noise, generator)
        assert self._uniform is not None
        mask = obs.get(MASK) if isinstance(obs, dict) else None
        random = self._uniform.act(noise[WARM], mask)
        warm = noise.get("rows")
        if warm is None and state is None:
            return random, None
        own, state = self.act(policy, obs, state, is_first, noise.get("own"), generator)
        if warm is None:
            return random, state
        return tree_map(lambda a, b: torch.where(_like(warm, a), a, b), random, own), state

    def on_arrays(
        self, policy: FrozenPolicy, rows: int, noise: Tree | None
    ) -> Callable[[Any, Any], Any] | None:
        """`chunk_act` for a chunk with this `noise`, on arrays: (observations of `rows` columns, one step of noise) →
        actions; None where it is not that simple.
        """
        return None

    def samples(self, policy: FrozenPolicy) -> bool:
        """Whether the actions of the next chunk are samples of the policy's own distribution and nothing else."""
        return False

    # -- what a subclass implements -------------------------------------------------------------------------
    @abstractmethod
    def noise(
        self, policy: FrozenPolicy, steps: int, columns: int, generator: torch.Generator
    ) -> Tree | None:
        """The randomness of a whole chunk in one draw, `[T, B, ...]`; None where its size is not fixed."""

    @abstractmethod
    def act(
        self,
        policy: FrozenPolicy,
        obs: Tree,
        state: Tree | None,
        is_first: Tensor | None,
        noise: Tree | None,
        generator: torch.Generator | None,
    ) -> tuple[Tree, Tree | None]:
        """The action `[B, ...]` of one step and the next state; `noise` is that step's part of what `noise`
        drew.
        """

    @abstractmethod
    def behaviour_log_prob(
        self, policy: FrozenPolicy, rows: Batch, state: Tree | None = None
    ) -> Tensor | None:
        """Log-probs `[T, B]` of the actions of `rows [T, B]` under this behaviour; None where they have no
        density. `state [B, …]` before row 0 is given where the policy has memory.
        """

    def state_dict(self) -> dict[str, Any]:
        """What must be saved beside the config and the clock."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave.

        Raises:
            ValueError: the state belongs to another kind of explorer.
        """
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but was given {', '.join(state)}.")


def _like(warm: Tensor, action: Tensor) -> Tensor:
    """`[B]` with as many trailing dimensions as the action `[B, ...]` has."""
    return warm.reshape(-1, *(1,) * (action.dim() - 1))
