"""Writing one checkpoint folder. The format is described in `uniarena.checkpoint`."""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from uniarena.checkpoint.codec import Aside, encode
from uniarena.checkpoint.manifest import (
    FORMAT,
    KEY,
    LARGEST,
    MANIFEST,
    SEGMENT,
    STATE,
    TENSORS,
    VERSION,
    CheckpointError,
    digest_of,
    read_manifest,
    render,
    sha256,
)

NEIGHBOURS = 3
"""Checkpoints beside a new one, the latest first, in which unchanged segments are looked for."""


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

    Segments (`codec.Segment`) that a checkpoint beside this one holds are not written again: their files are linked,
    and their digests taken over from its manifest. Where a file system has no hard links, they are written.
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
    except (TypeError, RecursionError, MemoryError) as error:
        raise CheckpointError(folder, f"could not be written: {error or type(error).__name__}") from error
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
    document, asides = _encoded(state)
    leftover = Aside()
    encoded_meta = encode(dict(meta), "", leftover)
    if leftover.tensors or leftover.segments:
        raise TypeError(
            f"meta holds a tensor or array at {next(iter(leftover.tensors), '?')!r}; it takes plain data only."
        )
    _write_bytes(folder / STATE, json.dumps(document, allow_nan=False, separators=(",", ":")).encode())
    files = {STATE: _entry(folder / STATE)}
    known = _segments_nearby(folder.parent) if any(aside.segments for aside in asides.values()) else {}
    for key, aside in asides.items():
        if aside.tensors:
            files[f"{key}{TENSORS}"] = _write_tensors(folder / f"{key}{TENSORS}", aside.tensors)
        for index, (stamp, tensors) in enumerate(aside.segments):
            path = folder / SEGMENT.format(key=key, index=index)
            if stamp in known and _linked(known[stamp][0], path, known[stamp][1]["bytes"]):
                files[path.name] = known[stamp][1]
            else:
                files[path.name] = {**_write_tensors(path, tensors), "stamp": stamp}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "created": time.time_ns(),
        "versions": _versions(),
        "keys": list(state),
        "files": dict(sorted(files.items())),
        "meta": encoded_meta,
    }
    manifest["sha256"] = digest_of(manifest)
    content = render(manifest)
    if len(content) > LARGEST:
        raise TypeError(
            f"meta takes {len(content):,} bytes; it is for counters and settings, up to {LARGEST:,}."
        )
    _write_bytes(folder / MANIFEST, content)
    _fsync(folder)


def _encoded(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Aside]]:
    """The state as JSON data, and the tensors of each of its top-level keys."""
    document: dict[str, Any] = {}
    asides: dict[str, Aside] = {}
    for key, value in state.items():
        if not isinstance(key, str) or not KEY.fullmatch(key):
            raise TypeError(f"top-level key {key!r} names a file: use letters, digits, '_', '-' and '.'.")
        asides[key] = Aside()
        try:
            document[key] = encode(value, "", asides[key])
        except TypeError as error:
            raise TypeError(f"in {key!r}: {error}") from error
    return document, asides


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Write a safetensors file → its entry in the manifest."""
    save_file(tensors, path)
    path.chmod((path.parent / STATE).stat().st_mode)  # the library makes files that only their owner can read
    _fsync(path)
    return _entry(path)


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def _segments_nearby(folder: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Stamp → file and entry of every segment in the latest checkpoints of a folder."""
    dated = []
    for path in folder.iterdir():
        if not path.name.startswith(".") and (path / MANIFEST).is_file():
            dated.append((path.stat().st_mtime_ns, path))
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for _, path in sorted(dated, reverse=True)[:NEIGHBOURS]:
        try:
            entries = read_manifest(path)["files"]
        except CheckpointError:
            continue
        found |= {e["stamp"]: (path / name, e) for name, e in entries.items() if "stamp" in e}
    return found


def _linked(source: Path, target: Path, size: int) -> bool:
    """Link a file of another checkpoint to this one; False where that cannot be, or it is not what it was."""
    try:
        if source.is_symlink() or source.stat().st_size != size:
            return False
        os.link(source, target)
    except OSError:  # gone, a file system without links, too many of them
        return False
    return True


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
