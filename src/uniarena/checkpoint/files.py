"""Writing and reading one checkpoint folder. The format is described in `uniarena.checkpoint`."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from uniarena.checkpoint.codec import Aside, decode, encode

FORMAT, VERSION = "uniarena-checkpoint", 1
MANIFEST, STATE, TENSORS = "manifest.json", "state.json", ".safetensors"

_KEY = re.compile(r"[\w.-]+")
_LOADING_ERRORS = (
    OSError,
    SafetensorError,
    ValueError,
    TypeError,
    LookupError,
    RecursionError,
    OverflowError,
)


class CheckpointError(ValueError):
    """A checkpoint cannot be written, found, read or trusted.

    Attributes:
        path: the file or folder at fault.
        reason: what is wrong with it.
    """

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = Path(path), reason


def save(folder: Path | str, state: Mapping[str, Any], meta: Mapping[str, Any]) -> Path:
    """Write `state` as the checkpoint `folder`, replacing an older checkpoint of that name. All or nothing.

    Args:
        state: name → nested dicts, lists and tuples of tensors, arrays, NumPy scalars, int, float, str, bool,
            None. It is only read.
        meta: plain data that `read_meta` gives without opening the state, such as counters and the resolved
            config.

    Raises:
        CheckpointError: the disk refused, the target is not a checkpoint, or a value cannot be saved (its
            place is named). What was there before is untouched.
    """
    folder = Path(folder)
    mark = f"{os.getpid()}-{secrets.token_hex(4)}"
    temporary = folder.with_name(f".{folder.name}.{mark}.tmp")
    try:
        _refuse_foreign(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        _write(temporary, state, meta)
        _publish(temporary, folder, mark)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            folder, f"could not be written ({error}); free space or choose another place."
        ) from error
    except (TypeError, RecursionError) as error:
        raise CheckpointError(folder, f"could not be written: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _refuse_foreign(folder: Path) -> None:
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_symlink() or not folder.is_dir():
        raise CheckpointError(folder, "exists and is not a folder; choose another place for the checkpoint.")
    foreign = [p.name for p in folder.iterdir() if p.name not in (MANIFEST, STATE) and p.suffix != TENSORS]
    if foreign:
        raise CheckpointError(
            folder, f"holds {sorted(foreign)[0]!r}, so it is no checkpoint and is not replaced."
        )


def _write(folder: Path, state: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    document: dict[str, Any] = {}
    asides: dict[str, Aside] = {}
    for key, value in state.items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise TypeError(f"top-level key {key!r} names a file: use letters, digits, '_', '-' and '.'.")
        asides[key] = Aside()
        try:
            document[key] = encode(value, "", asides[key])
        except TypeError as error:
            raise TypeError(f"in {key!r}: {error}") from error
    leftover = Aside()
    encoded_meta = encode(dict(meta), "", leftover)
    if leftover.tensors:
        raise TypeError(
            f"meta holds a tensor or array at {next(iter(leftover.tensors))!r}; it takes plain data only."
        )
    _write_bytes(folder / STATE, json.dumps(document, allow_nan=False, separators=(",", ":")).encode())
    mode = (folder / STATE).stat().st_mode
    for key, aside in asides.items():
        if aside.tensors:
            path = folder / f"{key}{TENSORS}"
            save_file(aside.tensors, path)
            path.chmod(mode)  # the library makes files that only their owner can read
            _fsync(path)
    files = {p.name: {"bytes": p.stat().st_size, "sha256": _sha256(p)} for p in sorted(folder.iterdir())}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "created": time.time_ns(),
        "versions": _versions(),
        "keys": list(state),
        "files": files,
        "meta": encoded_meta,
    }
    manifest["sha256"] = hashlib.sha256(_render(manifest)).hexdigest()
    _write_bytes(folder / MANIFEST, _render(manifest))
    _fsync(folder)


def _publish(temporary: Path, folder: Path, mark: str) -> None:
    """Rename into place. A crash between the two renames leaves `.<name>.<mark>.old`, which `newest`
    reads.
    """
    old = folder.with_name(f".{folder.name}.{mark}.old")
    replaced = folder.exists()
    if replaced:
        folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        if replaced:
            old.rename(folder)
        raise
    _fsync(folder.parent)
    if replaced:
        shutil.rmtree(old, ignore_errors=True)


def _write_bytes(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _fsync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows cannot open a folder
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    for name in ("uniarena", "safetensors"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def _render(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, allow_nan=False, indent=1).encode() + b"\n"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load(folder: Path | str, only: Sequence[str] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state (or the top-level keys in `only`) and the meta of a checkpoint, after verifying what is read.

    Raises:
        CheckpointError: a file is missing, cut off, changed or malformed (it is named), a key is not there,
            or the checkpoint was written by a newer version.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    keys = manifest["keys"] if only is None else list(only)
    for key in keys:
        if key not in manifest["keys"]:
            raise CheckpointError(folder, f"holds no {key!r}; it holds {', '.join(manifest['keys'])}.")
    files = manifest["files"]
    _verify(folder / STATE, files.get(STATE))
    document = _guarded(folder / STATE, lambda: json.loads((folder / STATE).read_bytes()))
    state = {}
    for key in keys:
        tensors = _read_tensors(folder / f"{key}{TENSORS}", files)
        state[key] = _guarded(folder / STATE, partial(_decode_key, document, key, tensors))
    return state, _guarded(folder / MANIFEST, lambda: decode(manifest["meta"], {}))


def _read_tensors(path: Path, files: Mapping[str, Any]) -> dict[str, Tensor]:
    if path.name not in files:
        return {}
    _verify(path, files[path.name])
    loaded = _guarded(path, lambda: load_file(path))
    return {
        name: tensor.clone() for name, tensor in loaded.items()
    }  # what the library gives is backed by the file


def _decode_key(document: Mapping[str, Any], key: str, tensors: Mapping[str, Tensor]) -> Any:
    return decode(document[key], tensors)


def verify(folder: Path) -> None:
    """Check every file of a checkpoint against its manifest.

    Raises:
        CheckpointError: naming the file at fault.
    """
    for name, expected in read_manifest(folder)["files"].items():
        _verify(folder / name, expected)


def read_meta(folder: Path | str) -> dict[str, Any]:
    """What `save` was given as `meta`; only the manifest is read.

    Raises:
        CheckpointError: the manifest is missing or damaged.
    """
    manifest = read_manifest(Path(folder))
    meta: dict[str, Any] = _guarded(Path(folder) / MANIFEST, lambda: decode(manifest["meta"], {}))
    return meta


def written_at(folder: Path | str) -> int:
    """When a checkpoint was written, in ns since 1970.

    Raises:
        CheckpointError: the manifest is missing or damaged.
    """
    return int(read_manifest(Path(folder))["created"])


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest as JSON data, after checking that it is intact.

    Raises:
        CheckpointError: it is missing, damaged or of a newer format.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(path, "is missing, so this is no whole checkpoint.")
    raw = _guarded(path, path.read_bytes)
    manifest = _guarded(path, lambda: json.loads(raw))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(path, "is not the manifest of a checkpoint.")
    body = {name: value for name, value in manifest.items() if name != "sha256"}
    # The rendering is canonical, so any changed byte shows, also one between the values.
    digest = _guarded(path, lambda: hashlib.sha256(_render(body)).hexdigest())
    if digest != manifest.get("sha256") or _render(manifest) != raw:
        raise CheckpointError(path, "is damaged: its content does not match its sha256.")
    if manifest["version"] > VERSION:
        found = manifest["version"]
        raise CheckpointError(
            path, f"has format version {found}; this version reads up to {VERSION}. Upgrade."
        )
    return manifest


def _verify(path: Path, expected: Any) -> None:
    if not path.is_file():
        raise CheckpointError(path, "is missing.")
    size = path.stat().st_size
    written = _guarded(path, lambda: (expected["bytes"], expected["sha256"]))
    if size != written[0]:
        raise CheckpointError(
            path, f"has {size} bytes, {written[0]} were written: it was cut off or changed."
        )
    if _guarded(path, lambda: _sha256(path)) != written[1]:
        raise CheckpointError(path, "is damaged: its sha256 differs from the manifest's.")


def _guarded(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except CheckpointError:
        raise
    except _LOADING_ERRORS as error:
        raise CheckpointError(path, f"cannot be read ({type(error).__name__}: {error}).") from error
