"""State in, state out: atomic, verified, without pickle. Loading a stranger's checkpoint cannot run code.

A checkpoint is a folder of

- `<key>.safetensors`: the tensors and arrays found under one top-level key of the state, named by their
  dotted path (so `agent.safetensors` opens in any safetensors tool); absent where a key holds none;
- `<key>@<n>.safetensors`: segment n of that key, a part of a large state that checkpoints side by side share as long as
  it does not change (hard links: deleting one checkpoint leaves the others whole);
- `state.json`: everything else. Plain values are JSON; what JSON cannot say is an object with the key `"$"`:
  `tensor` and `array` (`in`: name in the safetensors file; `dtype` and `shape` where the bytes are stored as
  uint8), `scalar` (a NumPy scalar: `dtype`, `hex` of its bytes), `float` (NaN and infinities: `hex` of the
  big-endian double), `int` (beyond ±2^53: `hex`), `tuple` (`items`), `dict` (keys that are not plain strings:
  `items` of pairs), `segment` (`in`: its number; `items` by name);
- `manifest.json`, written last: `format`, `version`, `created` (ns since 1970), `versions` of the software,
  `keys`, `files` (bytes and sha256 of each, and of segments the `stamp` that stands for their content), `meta` (what
  the caller gave, encoded as above), `sha256` of the manifest itself.

It is written under a hidden temporary name beside its target, fsynced and renamed, so that a folder with a
manifest is whole or damaged later, never half written. Arrays and tensors come back contiguous (C order), on
the CPU.
"""

from uniarena.checkpoint.codec import Segment, refuse_unsavable
from uniarena.checkpoint.files import save
from uniarena.checkpoint.find import locate, newest, remove, sweep
from uniarena.checkpoint.lock import locked
from uniarena.checkpoint.manifest import CheckpointError
from uniarena.checkpoint.reading import fingerprint, load, read_meta, written_at
from uniarena.checkpoint.trust import check_trust, rebuilding

__all__ = [
    "CheckpointError",
    "Segment",
    "check_trust",
    "fingerprint",
    "load",
    "locate",
    "locked",
    "newest",
    "read_meta",
    "rebuilding",
    "refuse_unsavable",
    "remove",
    "save",
    "sweep",
    "written_at",
]
