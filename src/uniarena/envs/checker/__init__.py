"""The environment checker: `check_env(env)` lists what is wrong and how to mend it."""

from __future__ import annotations

from uniarena.envs.checker.check import check_env
from uniarena.envs.checker.problem import Problem, report

__all__ = ["Problem", "check_env", "report"]
