"""Shapes and dtypes of the parts of an RLDS step, as TFDS describes them in `features.json`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from uniarena.batch import Tree
from uniarena.data.errors import DataError
from uniarena.data.source import count, json_object, nested
from uniarena.envs.spaces import leaf_spaces

FEATURES = "features.json"
_STEPS = ("featuresDict", "features", "steps", "sequence", "feature")
_DIMENSIONS = 32
"""Of an array; more means that the file is damaged."""


class Feature(NamedTuple):
    """Shape and dtype of one leaf of a step, whether it is an encoded picture, and why it cannot be read, if so."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    picture: bool = False
    odd: str = ""

    @property
    def size(self) -> int:
        """Numbers of a step."""
        return math.prod(self.shape)


def read_features(path: Path) -> dict[str, Feature]:
    """Leaf of a step (`observation/pos`) → its feature; none where there is no such file.

    Raises:
        DataError: it is damaged.
    """
    if not path.is_file():
        return {}
    inner = json_object(path)
    at = ""
    for name in _STEPS:
        at = f"{at}.{name}".lstrip(".")
        inner = _object(inner.get(name, {}), at, path)
    return dict(_leaves(inner, "", path))


def _leaves(feature: dict[str, Any], name: str, path: Path) -> Iterator[tuple[str, Feature]]:
    if "featuresDict" in feature:
        inner = _object(feature["featuresDict"], f"featuresDict of {name or 'steps'}", path)
        features = _object(inner.get("features", {}), f"features of {name or 'steps'}", path)
        for key, child in features.items():
            full = f"{name}/{key}" if name else key
            yield from _leaves(_object(child, full, path), full, path)
    for kind in ("tensor", "image"):
        if kind in feature:
            yield (
                name,
                _feature(_object(feature[kind], f"{kind} of {name}", path), kind == "image", name, path),
            )


def _feature(tensor: dict[str, Any], picture: bool, name: str, path: Path) -> Feature:
    shape = _object(tensor.get("shape", {}), f"shape of {name}", path)
    given = shape.get("dimensions", [])
    if not isinstance(given, list) or len(given) > _DIMENSIONS:
        raise DataError(
            f"dimensions of {name} are {given!r:.60}; expected a list of numbers", path, "mend it"
        )
    dims = tuple(-1 if str(each) == "-1" else count(each, f"a dimension of {name}", path) for each in given)
    text = tensor.get("dtype", "uint8")
    dtype = _dtype(text)
    odd = ""
    if dtype is None or (picture and dtype.kind not in "iu"):
        what = "pictures" if picture else "numbers"
        odd, dtype = f"has the dtype {text!r}, as which {what} cannot be read", np.dtype("O")
    elif -1 in dims and not picture:
        odd = f"has steps of the shape {dims}, where -1 differs from step to step"
    return Feature(dims, dtype, picture, odd)


def _dtype(text: Any) -> np.dtype[Any] | None:
    """The dtype of that name; object for strings; None: none that can be read."""
    if text in ("string", "object"):
        return np.dtype("O")
    if text == "bfloat16":  # an Example holds it as float32, in which it fits
        return np.dtype(np.float32)
    try:
        dtype = np.dtype(text) if isinstance(text, str) else None
    except (TypeError, ValueError, SyntaxError):
        return None
    return dtype if dtype is not None and dtype.kind in "biuf" and dtype.subdtype is None else None


def _object(value: Any, what: str, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(
            f"{what} is {value!r:.60}; expected a JSON object",
            path,
            "fetch or copy it again; without this file, shapes are concluded from the records",
        )
    return value


def described(observed: Space[Any], acted: Space[Any], flags: tuple[str, ...]) -> dict[str, Any]:
    """What `features.json` says of episodes with such observations and actions."""
    step = {"observation": _described(observed), "action": _described(acted), "reward": _scalar("float32")}
    step |= {"discount": _scalar("float32"), **{flag: _scalar("bool") for flag in flags}}
    steps = {
        "pythonClassName": "tensorflow_datasets.core.features.dataset_feature.Dataset",
        "sequence": {"feature": _dict(step), "length": "-1"},
    }
    return _dict({"steps": steps})


def _described(space: Space[Any]) -> dict[str, Any]:
    leaves = [(path, leaf) for path, leaf in leaf_spaces(space)]
    tensors = {
        path.replace(".", "/"): _tensor(tuple(leaf.shape or ()), str(np.dtype(leaf.dtype)))
        for path, leaf in leaves
    }
    return tensors[""] if list(tensors) == [""] else _nested_dict(nested(tensors, "/"))


def _nested_dict(tree: Tree) -> dict[str, Any]:
    return (
        tree
        if "pythonClassName" in tree
        else _dict({key: _nested_dict(child) for key, child in tree.items()})
    )


def _dict(features: dict[str, Any]) -> dict[str, Any]:
    name = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    return {"pythonClassName": name, "featuresDict": {"features": features}}


def _tensor(shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    dims = {"dimensions": [str(n) for n in shape]} if shape else {}
    tensor = {"shape": dims, "dtype": dtype, "encoding": "none"}
    return {"pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor", "tensor": tensor}


def _scalar(dtype: str) -> dict[str, Any]:
    return {**_tensor((), dtype), "pythonClassName": "tensorflow_datasets.core.features.scalar.Scalar"}
