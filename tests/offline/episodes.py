"""Random episodes whose every number is known, and files made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from uniarena.batch import tree_leaves, tree_map
from uniarena.data import Dataset, Episode, Recorder
from uniarena.data.fitting import policy_space
from uniarena.envs.spaces import storage_space

OBSERVATIONS: dict[str, Space[Any]] = {
    "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "float64": spaces.Box(-5.0, 5.0, (2,), np.float64),
    "image": spaces.Box(0, 255, (6, 5, 1), np.uint8),
    "class": spaces.Discrete(9, start=3),
    "dict": spaces.Dict(
        pos=spaces.Box(-1, 1, (2,), np.float32),
        inner=spaces.Dict(cam=spaces.Box(0, 255, (4, 4), np.uint8), mask=spaces.MultiBinary(3)),
    ),
    "tuple": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([3, 4])]),
}
ACTIONS: dict[str, Space[Any]] = {
    "box": spaces.Box(-2.0, 2.0, (2,), np.float32),
    "discrete": spaces.Discrete(4, start=-1),
    "multi": spaces.MultiDiscrete([3, 2], start=[0, 1]),
    "binary": spaces.MultiBinary(3),
    "dict": spaces.Dict(go=spaces.Discrete(3), turn=spaces.Box(-1, 1, (1,), np.float32)),
}


def values(space: Space[Any], count: int, rng: np.random.Generator) -> Any:
    """`[count, …]` random values of a space, in its dtypes."""
    if isinstance(space, spaces.Dict):
        return {key: values(child, count, rng) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(values(child, count, rng) for child in space.spaces)
    shape = (count, *(space.shape or ()))
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, shape)
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(space.start, space.start + space.nvec, shape)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 2, shape).astype(np.int8)
    if space.dtype == np.uint8:
        return rng.integers(0, 256, shape).astype(np.uint8)
    low, high = np.maximum(space.low, -3), np.minimum(space.high, 3)
    return rng.uniform(low, high, shape).astype(np.float32).astype(space.dtype)


def random_episodes(
    rng: np.random.Generator, observed: Space[Any], acted: Space[Any], count: int, longest: int = 9
) -> list[Episode]:
    """Episodes that terminate, are truncated, or both. Rewards are whole eighths, which every format keeps."""
    found = []
    for _ in range(count):
        steps = int(rng.integers(1, longest + 1))
        terminated, truncated = np.zeros(steps, bool), np.zeros(steps, bool)
        kind = rng.integers(3)
        terminated[-1], truncated[-1] = kind in (0, 2), kind in (1, 2)
        obs = tree_map(
            lambda leaf, space: leaf.astype(space.dtype),
            values(observed, steps + 1, rng),
            like(storage_space(observed)),
        )
        action = values(policy_space(acted), steps, rng)
        reward = rng.integers(-40, 40, steps) / 8
        found.append(Episode(obs, action, reward, terminated, truncated, True))
    return found


def like(space: Space[Any]) -> Any:
    """A tree of a space's leaves."""
    if isinstance(space, spaces.Dict):
        return {key: like(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(like(child) for child in space.spaces)
    return space


def record(path: Path, episodes: list[Episode], observed: Space[Any], acted: Space[Any]) -> Path:
    """Write a recording."""
    recorder = Recorder(observed, acted, {"id": "Toy-v0"}, {"made_by": "a test"})
    for episode in episodes:
        recorder.add(episode)
    return recorder.save(path)


def check_same(dataset: Dataset, episodes: list[Episode], both: bool = True) -> None:
    """The dataset holds exactly these episodes. `both`: the format can say terminated and truncated of one row."""
    assert dataset.episodes == len(episodes)
    for found, wanted in zip(dataset, episodes, strict=True):
        for got, expected in zip(tree_leaves(found.obs), tree_leaves(wanted.obs), strict=True):
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)
        for got, expected in zip(tree_leaves(found.action), tree_leaves(wanted.action), strict=True):
            np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(found.reward, wanted.reward)
        np.testing.assert_array_equal(found.terminated, wanted.terminated)
        np.testing.assert_array_equal(found.truncated, wanted.truncated & (both | ~wanted.terminated))
        assert found.final_known


def keyed(path: Path, **arrays: Any) -> Path:
    """A NumPy archive, or by its ending an HDF5 file, of these arrays."""
    if path.suffix == ".npz":
        np.savez_compressed(path, **arrays)
        return path
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path
