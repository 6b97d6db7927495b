"""The manifest of a checkpoint: what it says, whether it is whole, and what its files must be."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from safetensors import SafetensorError

FORMAT, VERSION = "uniarena-checkpoint", 2
MANIFEST, STATE, TENSORS = "manifest.json", "state.json", ".safetensors"

LARGEST = 2**26
"""Bytes of the largest manifest that is read."""

KEY = re.compile(r"[\w.-]+")
SEGMENT = "{key}@{index:04d}" + TENSORS
_OWNER = re.compile(r"([\w.-]+?)(?:@\d+)?\.safetensors")
_DIGEST, _STAMP = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{16,64}")
_LOADING_ERRORS = (
    OSError,
    SafetensorError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RuntimeError,  # also RecursionError
    ArithmeticError,
    MemoryError,
    struct.error,
)

T = TypeVar("T")


class CheckpointError(ValueError):
    """A checkpoint cannot be written, found, read or trusted.

    Attributes:
        path: the file or folder at fault.
        reason: what is wrong with it.
    """

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = Path(path), reason


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest as JSON data, after checking that it is intact and says what a manifest says.

    Raises:
        CheckpointError: it is missing, damaged, malformed or of a newer format.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(path, "is missing, so this is no whole checkpoint.")
    if guarded(path, path.stat).st_size > LARGEST:
        raise CheckpointError(path, f"is larger than any manifest ({LARGEST:,} bytes).")
    raw = guarded(path, path.read_bytes)
    manifest = guarded(path, lambda: parse(raw))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(path, "is not the manifest of a checkpoint.")
    # The rendering is canonical, so any changed byte shows, also one between the values.
    if guarded(path, lambda: digest_of(manifest) != manifest.get("sha256") or render(manifest) != raw):
        raise CheckpointError(path, "is damaged: its content does not match its sha256.")
    fault = guarded(path, lambda: _malformed(manifest))
    if fault:
        raise CheckpointError(path, f"is malformed: {fault}.")
    if manifest["version"] > VERSION:
        found = manifest["version"]
        raise CheckpointError(
            path,
            f"has format version {found}, written by UniArena {manifest['versions'].get('uniarena', '?')}; "
            f"this version reads up to {VERSION}. Upgrade.",
        )
    return manifest


def _malformed(manifest: Mapping[str, Any]) -> str | None:
    """What is wrong with a manifest whose digest fits: its writer knew the format, and may mean harm."""
    for name in ("version", "created"):
        value = manifest.get(name)
        if not (_is_count(value) and 0 < value < 2**63):
            return f"its {name!r} is {str(value)[:50]}"
    for name, kind in (("versions", dict), ("keys", list), ("files", dict), ("meta", dict)):
        if not isinstance(manifest.get(name), kind):
            return f"its {name!r} are no {kind.__name__}"
    keys, files = manifest["keys"], manifest["files"]
    if not all(isinstance(key, str) and KEY.fullmatch(key) for key in keys) or len(set(keys)) < len(keys):
        return "its keys are not the names of files"
    if STATE not in files:
        return f"it lists no {STATE}"
    for name, entry in files.items():
        owner = _OWNER.fullmatch(name)
        if name != STATE and (owner is None or owner[1] not in keys):
            return f"{name!r} is no file of a checkpoint"
        if not _is_entry(entry):
            return f"its entry of {name!r} is no size and sha256"
    return None


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not set(entry) <= {"bytes", "sha256", "stamp"}:
        return False
    digest, stamp = entry.get("sha256"), entry.get("stamp")
    return (
        _is_count(entry.get("bytes"))
        and isinstance(digest, str)
        and _DIGEST.fullmatch(digest) is not None
        and (stamp is None or (isinstance(stamp, str) and _STAMP.fullmatch(stamp) is not None))
    )


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_file(path: Path, expected: Mapping[str, Any]) -> None:
    """Check one file against its entry in the manifest.

    Raises:
        CheckpointError: it is missing, cut off or changed.
    """
    if not path.is_file():
        raise CheckpointError(path, "is missing.")
    size, written = guarded(path, path.stat).st_size, expected["bytes"]
    if size != written:
        raise CheckpointError(path, f"has {size} bytes, {written} were written: it was cut off or changed.")
    if guarded(path, lambda: sha256(path)) != expected["sha256"]:
        raise CheckpointError(path, "is damaged: its sha256 differs from the manifest's.")


def sha256(path: Path) -> str:
    """Digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(manifest: Mapping[str, Any]) -> str:
    """Digest of a manifest without the digest that it holds."""
    return hashlib.sha256(
        render({name: value for name, value in manifest.items() if name != "sha256"})
    ).hexdigest()


def render(manifest: Mapping[str, Any]) -> bytes:
    """The one way in which a manifest is written."""
    return json.dumps(manifest, allow_nan=False, indent=1).encode() + b"\n"


def parse(raw: bytes) -> Any:
    """Strict JSON: NaN and infinities, which it lacks, are errors.

    Raises:
        ValueError: it is none.
    """
    return json.loads(raw, parse_constant=_refuse)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def guarded(path: Path, read: Callable[[], T]) -> T:
    """What `read` gives; whatever a damaged or forged file makes it raise becomes a CheckpointError.

    Raises:
        CheckpointError: naming `path`.
    """
    try:
        return read()
    except CheckpointError:
        raise
    except _LOADING_ERRORS as error:
        said = str(error).split("\n", 1)[0][:300]
        raise CheckpointError(path, f"cannot be read ({type(error).__name__}: {said}).") from error
