"""Environments of every kind as one: batched, with true final observations, on NumPy or on the simulator's
device.
"""

from uniarena.config import WorkersConfig
from uniarena.envs.actions import ActionMap
from uniarena.envs.faults import WorkerError
from uniarena.envs.make import make_env
from uniarena.envs.masks import ActionMaskError
from uniarena.envs.notices import UniArenaNotice
from uniarena.envs.protocol import Env, Final, Step
from uniarena.envs.serial import SerialEnvs
from uniarena.envs.spaces import LeafEncoder, register_encoder
from uniarena.envs.tensor import TensorEnvs
from uniarena.envs.vector import VectorEnvs
from uniarena.envs.workers import WorkerEnvs

__all__ = [
    "ActionMap",
    "ActionMaskError",
    "Env",
    "Final",
    "LeafEncoder",
    "SerialEnvs",
    "Step",
    "TensorEnvs",
    "UniArenaNotice",
    "VectorEnvs",
    "WorkerEnvs",
    "WorkerError",
    "WorkersConfig",
    "make_env",
    "register_encoder",
]
