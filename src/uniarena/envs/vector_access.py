"""VectorAccess: reaching what is inside a gymnasium vector environment, be it in lists, in processes or in
one object.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from uniarena.envs.column import base_call, base_get, base_set, close_quietly, frame_of
from uniarena.envs.native import load_native, native_state


class VectorAccess:
    """Attributes, pictures, native state and the end of a vector environment.

    Args:
        vector: the environment, possibly in vector wrappers.

    Attributes:
        per_column: its columns are environments of their own, each with a seed.
        partial_reset: it takes `options["reset_mask"]`.
    """

    def __init__(self, vector: VectorEnv) -> None:
        self.vector = vector
        self.base: Any = vector.unwrapped
        self.wrapped: Any = vector
        self.sync = isinstance(self.base, SyncVectorEnv)
        self.processes = isinstance(self.base, AsyncVectorEnv)
        self.per_column = self.sync or self.processes or getattr(self.base, "per_column", False)
        self.partial_reset = self.per_column or getattr(self.base, "partial_reset", False)

    def get(self, name: str) -> list[Any]:
        """Attribute `name` of each base environment."""
        if self.sync:
            return [base_get(env, name) for env in self.base.envs]
        return list(self.base.get_attr(name)) if self.processes else [base_get(self.vector, name)]

    def set(self, name: str, value: Any) -> None:
        """Set it on each, by `set_<name>(value)` where there is one; one value for all, also if it is a list."""
        if self.sync:
            for env in self.base.envs:
                base_set(env, name, value)
        elif self.processes and all(self.base.call("has_wrapper_attr", f"set_{name}")):
            self.base.call(f"set_{name}", value)
        elif self.processes:
            self.base.set_attr(name, [value] * self.base.num_envs)
        else:
            base_set(self.vector, name, value)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Call method `name` of each."""
        if self.sync:
            return [base_call(env, name, *args, **kwargs) for env in self.base.envs]
        if self.processes:
            return list(self.base.call(name, *args, **kwargs))
        return [base_call(self.vector, name, *args, **kwargs)]

    def picture(self) -> np.ndarray | None:
        """A frame of the first environment."""
        if self.sync and self.wrapped is self.base:  # the first one alone
            first = self.base.envs[0]
            return frame_of(first.render()) if first.render_mode else None
        if not self.vector.render_mode:
            return None
        frames: Any = self.vector.render()
        return frame_of(frames[0] if isinstance(frames, tuple) else frames)

    def state(self) -> dict[str, Any] | None:
        """Native state, or None."""
        if not (self.sync or self.processes):
            whole = native_state(self.vector)
            return None if whole is None else {"whole": whole}
        if self.wrapped is not self.base or self.processes:
            return None
        columns = [native_state(env) for env in self.base.envs]
        if any(column is None for column in columns):
            return None
        return {"columns": columns, "pending": self.base._autoreset_envs.copy()}

    def load(self, state: dict[str, Any]) -> None:
        """Take what `state` gave.

        Raises:
            ValueError: another number of environments, or another kind of vector.
        """
        if "whole" in state:
            load_native(self.vector, state["whole"])
            return
        columns = state["columns"]
        if len(columns) != self.base.num_envs:
            raise ValueError(
                f"state of {len(columns)} environments given; this vector has {self.base.num_envs}"
            )
        for env, own in zip(self.base.envs, columns, strict=True):
            load_native(env, own)
        self.base._autoreset_envs = np.array(state["pending"], bool)

    def close(self, broken: bool) -> None:
        """Close it; worker processes that no longer answer are terminated."""
        if not self.processes:
            close_quietly(self.vector, type(self.base).__name__)
            return
        alive = all(process.is_alive() for process in self.base.processes)
        if broken or not alive:
            self.base._state = type(
                self.base._state
            ).DEFAULT  # else close waits for an answer that never comes
            self.vector.close(terminate=True)
        else:
            self.vector.close()
        for process in self.base.processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
