"""Reading one checkpoint folder. Nothing is believed before its digest was compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from uniarena.checkpoint.codec import decode
from uniarena.checkpoint.manifest import (
    MANIFEST,
    SEGMENT,
    STATE,
    TENSORS,
    VERSION,
    CheckpointError,
    check_file,
    guarded,
    parse,
    read_manifest,
)
from uniarena.checkpoint.migrations import MIGRATIONS, migrate

Files = Mapping[str, Mapping[str, Any]]


def load(folder: Path | str, only: Iterable[str] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state (or the top-level keys in `only`) and the meta of a checkpoint, after verifying what is read.

    Segments stay in their files, which the system pages in as they are read: take over what they hold, and let them go.

    Raises:
        CheckpointError: a file is missing, cut off, changed or malformed (it is named), a key is not there,
            or the checkpoint was written by a newer version, or one too old.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    keys = manifest["keys"] if only is None else list(only)
    for key in keys:
        if key not in manifest["keys"]:
            raise CheckpointError(folder, f"holds no {key!r}; it holds {', '.join(manifest['keys'])}.")
    document = _read_document(folder, manifest)
    state = {}
    for key in keys:
        tensors = _read_tensors(folder / f"{key}{TENSORS}", manifest["files"])
        segments = partial(_read_segment, folder, key, manifest["files"])
        state[key] = guarded(folder / STATE, partial(_decode_key, document, key, tensors, segments))
    return state, _meta(folder, manifest)


def _read_document(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    path = folder / STATE
    check_file(path, manifest["files"][STATE])
    document = guarded(path, lambda: parse(path.read_bytes()))
    if not isinstance(document, dict) or set(document) != set(manifest["keys"]):
        raise CheckpointError(path, "holds other keys than the manifest says.")
    guarded(path, lambda: migrate(document, manifest["version"], VERSION, MIGRATIONS))
    return document


def _read_tensors(path: Path, files: Files) -> dict[str, Tensor]:
    if path.name not in files:
        return {}
    check_file(path, files[path.name])
    loaded = guarded(path, lambda: load_file(path))
    return {
        name: tensor.clone() for name, tensor in loaded.items()
    }  # what the library gives is backed by the file


def _read_segment(folder: Path, key: str, files: Files, index: int) -> tuple[dict[str, Tensor], str | None]:
    path = folder / SEGMENT.format(key=key, index=index)
    if path.name not in files:
        raise CheckpointError(path, "is not in the manifest.")
    check_file(path, files[path.name])
    return guarded(path, lambda: load_file(path)), files[path.name].get("stamp")


def _decode_key(
    document: Mapping[str, Any], key: str, tensors: Mapping[str, Tensor], open_segment: Any
) -> Any:
    return decode(document[key], tensors, open_segment)


def verify(folder: Path) -> None:
    """Check every file of a checkpoint against its manifest.

    Raises:
        CheckpointError: naming the file at fault.
    """
    for name, expected in read_manifest(folder)["files"].items():
        check_file(folder / name, expected)


def read_meta(folder: Path | str) -> dict[str, Any]:
    """What `save` was given as `meta`; only the manifest is read.

    Raises:
        CheckpointError: the manifest is missing or damaged.
    """
    return _meta(Path(folder), read_manifest(Path(folder)))


def written_at(folder: Path | str) -> int:
    """When a checkpoint was written, in ns since 1970.

    Raises:
        CheckpointError: the manifest is missing or damaged.
    """
    return int(read_manifest(Path(folder))["created"])


def fingerprint(folder: Path | str) -> str:
    """Sha256 of a checkpoint's manifest, which holds those of its files: copies have the same, others do not.

    Raises:
        CheckpointError: the manifest is missing or damaged.
    """
    return str(read_manifest(Path(folder))["sha256"])


def _meta(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    path = folder / MANIFEST
    meta = guarded(path, lambda: decode(manifest["meta"], {}))
    if not isinstance(meta, dict) or not all(isinstance(name, str) for name in meta):
        raise CheckpointError(path, "is malformed: its meta is no map of names.")
    return meta
