"""DeepMind control suite tasks as Gymnasium environments. The only file that imports dm_control."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space, spaces


class DMControl(gym.Env):
    """One task of the suite: dict observations, Box actions in float64.

    An episode ends by the suite's own limit (truncated) or where the task says that nothing follows
    (terminated).

    Args:
        task: `domain-task`, such as `cartpole-swingup`.
        render_mode: `rgb_array` or None.
        kwargs: options of the task (`task_kwargs` of `suite.load`).

    Raises:
        ValueError: the suite has no such task.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012  (as gymnasium.Env declares it)

    def __init__(self, task: str, render_mode: str | None = None, **kwargs: Any) -> None:
        from dm_control import suite

        domain, _, name = task.partition("-")
        if (domain, name) not in suite.ALL_TASKS:
            known = (
                ", ".join(f"{d}-{t}" for d, t in suite.ALL_TASKS if d == domain)
                or "see dm_control.suite.ALL_TASKS"
            )
            raise ValueError(f"dm_control has no task {task!r}; of this domain there are: {known}")
        self.render_mode = render_mode
        self.suite = suite.load(domain, name, task_kwargs=kwargs)
        self.observation_space = spaces.Dict(
            [(key, _space(part)) for key, part in self.suite.observation_spec().items()]
        )
        self.action_space = _space(self.suite.action_spec())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """First observation of an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.suite.task._random = np.random.RandomState(seed)
        return dict(self.suite.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One control step."""
        moment = self.suite.step(action)
        over = moment.last()
        terminated = over and moment.discount == 0.0
        return dict(moment.observation), float(moment.reward or 0.0), terminated, over and not terminated, {}

    def render(self) -> np.ndarray | None:
        """A picture from the task's first camera."""
        return self.suite.physics.render(480, 640, camera_id=0) if self.render_mode else None

    def close(self) -> None:
        """Release the simulation."""
        self.suite.close()


def _space(spec: Any) -> Space[Any]:
    low = np.broadcast_to(getattr(spec, "minimum", -np.inf), spec.shape).astype(spec.dtype)
    high = np.broadcast_to(getattr(spec, "maximum", np.inf), spec.shape).astype(spec.dtype)
    return spaces.Box(low, high, tuple(spec.shape), spec.dtype)
