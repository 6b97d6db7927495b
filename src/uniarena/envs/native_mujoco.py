"""Native state of MuJoCo simulations: the integration state, every derived array, and the fingerprint of the
model.

The derived arrays matter because environments read them before the next step (a centre of mass from the last
step's kinematics, say), and recomputing them from the positions would give slightly different numbers. Lists
of contacts are recomputed; an environment that reads contacts before it steps sees those of the restored
positions.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import numpy as np

_log = logging.getLogger(__name__)
_said: set[str] = set()


def handles(value: Any) -> bool:
    """Whether the value is a MuJoCo model or its data; told without importing MuJoCo."""
    module = str(getattr(type(value), "__module__", ""))
    return module.partition(".")[0] == "mujoco" and type(value).__name__ in ("MjModel", "MjData")


def encode(value: Any) -> dict[str, Any]:
    """Plain data of a model (its fingerprint) or of its data (all numbers)."""
    import mujoco

    if isinstance(value, mujoco.MjModel):
        return {"class": "MjModel", "fingerprint": _fingerprint(value)}
    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(value.model, spec))
    mujoco.mj_getState(value.model, value, state, spec)
    arrays = {name: array.copy() for name, array in _arrays(value).items()}
    return {"class": "MjData", "fingerprint": _fingerprint(value.model), "state": state, "arrays": arrays}


def load(value: Any, data: dict[str, Any]) -> None:
    """Write what `encode` gave into a model (checked only) or its data.

    Raises:
        ValueError: the model differs from the one that the state was taken of.
    """
    import mujoco

    model = value if isinstance(value, mujoco.MjModel) else value.model
    if _fingerprint(model) != data["fingerprint"]:
        raise ValueError(
            "the MuJoCo model differs from the one that the state was taken of (another version of MuJoCo "
            "or of the task, "
            "or changed parameters); make the same environment, with the same options, before loading"
        )
    if isinstance(value, mujoco.MjModel):
        return
    mujoco.mj_setState(
        model, value, np.asarray(data["state"], np.float64), mujoco.mjtState.mjSTATE_INTEGRATION
    )
    mujoco.mj_forward(model, value)
    for name, array in _arrays(value).items():
        saved = data["arrays"].get(name)
        if saved is not None and saved.shape == array.shape:
            array[...] = saved


def _arrays(data: Any) -> dict[str, np.ndarray]:
    """The arrays of fixed size; those of contacts and constraints change their length from step to step."""
    found = {}
    for name in dir(data):
        if name.startswith(("_", "efc_", "iefc_", "efm_", "island", "map_", "plugin")):
            continue
        array = getattr(data, name)
        if (
            isinstance(array, np.ndarray)
            and array.size
            and array.dtype.kind in "biuf"
            and array.flags.writeable
        ):
            found[name] = array
    return found


def _fingerprint(model: Any) -> str:
    import mujoco

    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.sha256(buffer.tobytes()).hexdigest()


def tell_once() -> None:
    """Have MuJoCo's warnings logged, once each, in place of lines on the terminal and a file MUJOCO_LOG.TXT.

    What its compiler finds old-fashioned in a model file is nobody's affair here, and goes to the debug level.
    """
    try:
        import mujoco
    except ImportError:
        return
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_say)


def _say(text: str) -> None:
    if text not in _said:
        _said.add(text)
        _log.log(logging.DEBUG if "deprecated" in text else logging.WARNING, "MuJoCo: %s", text)
