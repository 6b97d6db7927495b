"""Two configurations side by side, key by key; and two runs: configuration, code, versions, hardware."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uniarena import checkpoint, provenance
from uniarena.checkpoint import CheckpointError
from uniarena.checkpoint.find import meant
from uniarena.config import Section, from_text, load
from uniarena.config.section import REDACTED, plain
from uniarena.run.folder import CONFIG, read_result, saved_changes, saved_config
from uniarena.run.saved import locate
from uniarena.run.whole import filled, is_schedule

Pair = tuple[Any, Any]
"""What the one has and what the other has; None: not there."""
LEARNER = "learner.type"
PARTS = ("config", "code", "versions", "machine")


# -- configurations ----------------------------------------------------------------------------------------------
def differences(a: Any, b: Any, path: str = "") -> dict[str, Pair]:
    """Key path → what either has, where they differ. A schedule is one value, as is a list of plain values."""
    if isinstance(a, Mapping) and isinstance(b, Mapping) and not (is_schedule(a) or is_schedule(b)):
        found: dict[str, Pair] = {}
        for key in dict.fromkeys([*a, *b]):
            found |= differences(a.get(key), b.get(key), f"{path}.{key}" if path else str(key))
        return found
    if _of_maps(a) and _of_maps(b) and len(a) == len(b):
        found = {}
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            found |= differences(x, y, f"{path}.{index}")
        return found
    return {} if a == b else {path: (a, b)}


def _of_maps(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, Mapping) for entry in value)


def told(value: Any) -> str:
    """A value as one writes it on the command line."""
    return "null" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


# -- runs --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Comparison:
    """How two runs differ; what is empty is equal.

    Attributes:
        runs: their paths.
        config: key path → the two values.
        code: `commit`, `branch`, `remote` and `uncommitted changes` → the two values.
        versions: package, or `python` → the two versions.
        machine: `platform`, `cpu`, `gpus`, … → the two values.
        changes: for each run what was changed when it was resumed.
        results: `return_mean`, and `score` where there is a reference, of the last evaluations; they tell runs apart,
            and are no difference in what was run.
        own: where the learners differ, keys of `config` that only the one or only the other has: they follow.
    """

    runs: tuple[str, str]
    config: dict[str, Pair]
    code: dict[str, Pair]
    versions: dict[str, Pair]
    machine: dict[str, Pair]
    changes: tuple[list[dict[str, Any]], list[dict[str, Any]]]
    results: dict[str, Pair] = field(default_factory=dict)
    own: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        same = self.changes[0] == self.changes[1]
        return same and not (self.config or self.code or self.versions or self.machine)

    def to_json(self) -> dict[str, Any]:
        """The object that `uniarena diff --json` prints."""
        parts = {name: getattr(self, name) for name in (*PARTS, "results")}
        found = {name: {key: list(pair) for key, pair in part.items()} for name, part in parts.items()}
        return {"runs": list(self.runs), "equal": self.equal, **found, "changes": list(self.changes)}

    def __str__(self) -> str:
        if self.equal and not self.results:
            return f"{self.runs[0]} and {self.runs[1]} are equal: configuration, code, versions, machine"
        lines = [f"< {self.runs[0]}", f"> {self.runs[1]}"]
        for name in (*PARTS, "results"):
            if part := getattr(self, name):
                lines += ["", name, *(self._config() if name == "config" else _listed_pairs(part))]
        for mark, run, changes in zip("<>", self.runs, self.changes, strict=True):
            if changes:
                lines += ["", f"{mark} changed when {run} was resumed", *map(change_line, changes)]
        return "\n".join(lines)

    def _config(self) -> list[str]:
        """What differs between the configurations: first of all the learner, and last what only one of the two has."""
        first = {LEARNER: self.config[LEARNER]} if LEARNER in self.config else {}
        follows = {key for own in self.own for key in own}
        lines = _listed_pairs(first | {k: pair for k, pair in self.config.items() if k not in follows})
        if follows:
            lines.append("  keys that the other learner and its parts lack (--json has their values)")
        for mark, keys in zip("<>", self.own, strict=True):
            sections: dict[str, list[str]] = {}
            for section, _, key in (key.rpartition(".") for key in keys):
                sections.setdefault(section, []).append(key)
            lines += [f"    {mark} {name}: {', '.join(names)}" for name, names in sections.items()]
        return lines


def change_line(change: Mapping[str, Any]) -> str:
    """One recorded change as text."""
    steps = f"at {change['env_steps']:,} env steps"
    return f"  {steps}: {change['key']} {told(change['old'])} → {told(change['new'])}"


def _listed_pairs(part: Mapping[str, Pair]) -> list[str]:
    return [line for key, pair in part.items() for line in _shown(key, pair)]


def _shown(key: str, pair: Pair) -> Iterator[str]:
    yield f"  {key}"
    for mark, value in zip("<>", pair, strict=True):
        yield f"    {mark} {told(value)}"


def diff(a: str | Path, b: str | Path) -> Comparison:
    """Compare two runs, or checkpoints of runs; nothing that they name is imported, unless it is part of this package
    or registered.

    Raises:
        CheckpointError: a path is no run and no checkpoint of one.
    """
    first, second = _Account.of(Path(a)), _Account.of(Path(b))
    configs = [_filled(account.tree) for account in (first, second)]
    if None in configs:  # then both as they are written
        configs = [plain(account.tree) for account in (first, second)]
    records = (first.record, second.record)
    machine = [_machine(record) for record in records]
    versions = [
        {"python": record.get("python"), **record.get("packages", {})} if record else {} for record in records
    ]
    config = differences(configs[0], configs[1])
    return Comparison(
        (str(a), str(b)),
        config,
        differences(first.code, second.code),
        differences(versions[0], versions[1]),
        differences(machine[0], machine[1]),
        (first.changes, second.changes),
        differences(first.results, second.results),
        (_follow(config, *configs), _follow(config, *configs[::-1])),
    )


def _follow(config: Mapping[str, Pair], one: Any, other: Any) -> tuple[str, ...]:
    """The keys of learner and agent that only `one` has because its learner is another."""
    if LEARNER not in config:
        return ()
    ours = [key for key in config if key.startswith(("learner.", "agent."))]
    return tuple(key for key in ours if _has(one, key.split(".")) and not _has(other, key.split(".")))


def _has(tree: Any, keys: Sequence[str]) -> bool:
    for key in keys:
        if not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True


@dataclass(frozen=True)
class _Account:
    """What a run or a checkpoint says of itself."""

    tree: Section
    record: dict[str, Any]
    code: dict[str, Any]
    changes: list[dict[str, Any]]
    results: dict[str, Any]

    @classmethod
    def of(cls, path: Path) -> _Account:
        path = meant(path)
        if (path / CONFIG).is_file():
            tree = saved_config(path)
            record, changes = provenance.read_record(path), saved_changes(path)
            patch = path / record.get("git", {}).get("diff", "-")
            dirty = patch.read_text(encoding="utf-8", errors="replace") if patch.is_file() else ""
            results = _results(path)
        else:
            meta = checkpoint.read_meta(locate(path))
            if meta.get("config") is None:
                raise CheckpointError(path, "holds an agent alone, without a run's configuration.")
            tree = from_text(meta["config"], f"{path} (config)")
            record, changes = meta.get("provenance") or {}, meta.get("changes") or []
            dirty, results = record.get("git", {}).get("patch", ""), {}
        return cls(tree, record, _code(record.get("git", {}), dirty), changes, results)


def _results(run: Path) -> dict[str, Any]:
    """What the last evaluation of a run that ended found."""
    ended = read_result(run)
    if ended is None or ended.eval is None:
        return {}
    found = {"return_mean": ended.eval.return_mean, "score": ended.eval.score}
    return {name: round(value, 4) for name, value in found.items() if value is not None}


def _filled(tree: Section) -> dict[str, Any] | None:
    """With defaults; None where it names what is not known here, or what would have to be imported by path."""
    agent = tree.get("agent", {})
    parts = [
        tree.get("learner", {}),
        *_listed(tree.get("learner", {}).get("regularizers")),
        agent.get("explorer"),
        agent.get("buffer"),
        agent.get("memory"),
        *_listed(agent.get("intrinsic")),
    ]
    if any(":" in str(part.get("type")) for part in parts if part):
        return None
    try:
        return filled(load([_unhidden(tree)]))
    except (ValueError, LookupError):  # of another version, or with parts that are not installed here
        return None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _unhidden(value: Any) -> Any:
    """With some text in place of secrets, which `to_mapping` takes out again."""
    if isinstance(value, Mapping):
        return Section({key: _unhidden(entry) for key, entry in value.items()})
    if isinstance(value, list):
        return [_unhidden(entry) for entry in value]
    return "left out" if value == REDACTED else value


def _code(git: Mapping[str, Any], patch: str) -> dict[str, Any]:
    """The commit, and the uncommitted changes by file."""
    found = {name: git.get(name) for name in ("commit", "branch", "remote", "why")}
    return {**found, "uncommitted changes": by_file(patch)}


def by_file(patch: str) -> dict[str, str]:
    """File → lines added and removed, and a short hash of its part of a diff."""
    found = {}
    for part in re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE):
        head = re.match(r"diff --git a/.* b/(.*)\n", part)
        if head:
            lines = part.splitlines()
            added = sum(line.startswith("+") and not line.startswith("+++ ") for line in lines)
            removed = sum(line.startswith("-") and not line.startswith("--- ") for line in lines)
            digest = hashlib.sha256(part.encode("utf-8", "surrogateescape")).hexdigest()
            found[head[1]] = f"+{added} -{removed} ({digest[:8]})"
    return found


def _machine(record: Mapping[str, Any]) -> dict[str, Any]:
    names = ("platform", "hardware", "variables")
    return {name: record.get(name) for name in names} if record else {}
