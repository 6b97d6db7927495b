"""Named random streams derived from one seed, and the global streams that users' code draws from.

Our own randomness never comes from a global generator: every part asks for a stream by name, so that adding a
part, or calling one more often, moves no other part's numbers. The global streams (`random`, `numpy.random`,
torch's default generators) are seeded and saved too, because environments and callbacks of users draw from
them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["Streams", "global_state", "preserved_globals", "seed_globals", "set_global_state"]


class Streams:
    """Independent generators by name: the same seed and name always give the same numbers.

    A generator is made once and then shared by everyone who asks for its name. After `load_state_dict` the
    generators that were handed out before continue from the saved state, in place.

    Args:
        seed: any integer from 0 up.

    Raises:
        ValueError: `seed` is not such an integer.
    """

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise ValueError(f"seed={seed!r}: expected an integer from 0 up.")
        self.seed = int(seed)
        self._torch: dict[tuple[str, str], torch.Generator] = {}
        self._numpy: dict[str, np.random.Generator] = {}
        # States that were loaded for streams nobody asked for yet.
        self._waiting: dict[tuple[str, str], torch.Tensor] = {}

    def seed_for(self, name: str) -> int:
        """A 31-bit seed: the first four bytes of SHA-256 of `"<seed>/<name>"`, without the sign bit."""
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        return int.from_bytes(digest[:4], "big") & 0x7FFF_FFFF

    def torch(self, name: str, device: torch.device | str = "cpu") -> torch.Generator:
        """The torch generator `name` that lives on `device`."""
        found = self._torch.get((name, device))  # type: ignore[arg-type]  # by name of the device, as keys are
        if found is not None:
            return found
        device = torch.device(device)
        if device.type != "cpu" and ":" not in str(device):
            device = torch.Generator(device=device).device  # "cuda" and "cuda:0" are one stream
        key = (name, str(device))
        if key not in self._torch:
            generator = torch.Generator(device=device)
            generator.manual_seed(self.seed_for(name))
            if key in self._waiting:
                generator.set_state(self._waiting.pop(key))
            self._torch[key] = generator
        return self._torch[key]

    def numpy(self, name: str) -> np.random.Generator:
        """The NumPy generator (PCG64) `name`."""
        if name not in self._numpy:
            self._numpy[name] = np.random.Generator(np.random.PCG64(self.seed_for(name)))
        return self._numpy[name]

    def state_dict(self) -> dict[str, Any]:
        states = {**self._waiting, **{key: generator.get_state() for key, generator in self._torch.items()}}
        return {
            "seed": self.seed,
            "torch": [[*key, states[key]] for key in sorted(states)],  # whoever was asked for first
            "numpy": {name: generator.bit_generator.state for name, generator in self._numpy.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue every stream where it was saved. A stream that was not used before the save starts
        afresh.
        """
        self.seed = int(state["seed"])
        self._waiting = {(name, device): saved for name, device, saved in state["torch"]}
        for key, generator in self._torch.items():
            saved = self._waiting.pop(key, None)
            if saved is None:
                generator.manual_seed(self.seed_for(key[0]))
            else:
                generator.set_state(saved)
        for name in self._numpy.keys() - state["numpy"].keys():
            self._numpy[name].bit_generator.state = np.random.PCG64(self.seed_for(name)).state
        for name, saved in state["numpy"].items():
            self.numpy(name).bit_generator.state = saved


def seed_globals(seed: int) -> None:
    """Seed `random`, `numpy.random` and torch's default generators on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (users' code draws from the global stream)
    torch.manual_seed(seed)


def global_state() -> dict[str, Any]:
    """The global streams as plain data: `python`, `numpy`, `torch`, and `cuda` (one per device) where CUDA
    is in use.
    """
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "internal": np.array(internal, dtype=np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_global_state(state: Mapping[str, Any]) -> None:
    """Put the global streams back to what `global_state` gave, bit for bit."""
    python = state["python"]
    random.setstate((python["version"], tuple(int(word) for word in python["internal"]), python["gauss"]))
    np.random.set_state(state["numpy"])  # noqa: NPY002
    _set_torch(state["torch"], state.get("cuda"))


class KeptGlobals:
    """The global streams of now: after each block under it they continue as if it had drawn nothing.

    Cheap enough (tens of microseconds, of which NumPy takes most) to stand around every callback.
    """

    def __init__(self) -> None:
        self._python, self._torch = random.getstate(), torch.get_rng_state()
        self._numpy = np.random.get_state(legacy=False)  # noqa: NPY002
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def __enter__(self) -> None:
        """Nothing is to be done."""

    def __exit__(self, *error: object) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        _set_torch(self._torch, self._cuda)


def preserved_globals() -> KeptGlobals:
    """Whatever the block draws from the global streams, they continue afterwards as if it had drawn nothing."""
    return KeptGlobals()


def _set_torch(default: torch.Tensor, cuda: list[torch.Tensor] | None) -> None:
    torch.set_rng_state(default)
    if cuda is not None and torch.cuda.is_available():
        for device, state in enumerate(cuda[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)
    elif torch.cuda.is_initialized():
        # CUDA was first used after the state was taken; until then its generators stood at torch's own seed.
        torch.cuda.manual_seed_all(torch.initial_seed())
