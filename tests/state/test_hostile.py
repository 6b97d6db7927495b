"""Damaged and hostile checkpoints: the outcome is always a named error; nothing is run, written, or taken in bulk."""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import uniarena
from tests.state.forging import edit, seal
from uniarena import checkpoint
from uniarena.agent import Agent
from uniarena.checkpoint import CheckpointError, Segment, load, newest, read_meta
from uniarena.checkpoint.manifest import digest_of, render
from uniarena.checkpoint.reading import verify
from uniarena.config import ConfigError

STAMP = "0123456789abcdef" * 2
SMALL = {
    "learner": {"type": "ppo", "n_steps": 16, "n_epochs": 1, "batch_size": 16},
    "environment": {"id": "CartPole-v1"},
    "agent": {"policy": {"hidden_sizes": [4]}},
    "training": {"total_timesteps": 32, "n_eval_episodes": 1, "device": "cpu", "threads": 1},
    "experiment": {"seed": 0, "loggers": [{"type": "jsonl"}]},
}


def sample(root: Path) -> Path:
    state = {
        "agent": {"w": torch.arange(6.0), "steps": [1, (2, "x")], "lr": float("nan")},
        "buffer": {
            "parts": [Segment({"rows": torch.arange(4), "flags": torch.ones(4)}, STAMP)],
            "size": 2**60,
        },
    }
    return checkpoint.save(root / "c", state, {"counters": {"env_steps": 3}, "kind": "step"})


def snapshot(root: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
        if not path.is_symlink()
    }


def refused(call: Callable[[], Any], root: Path, inside: Path) -> CheckpointError:
    """The error, after making sure that it names what is at fault and that nothing on disk has changed."""
    before = snapshot(root)
    with pytest.raises(CheckpointError) as caught:
        call()
    assert snapshot(root) == before
    assert caught.value.path == inside or caught.value.path.parent == inside, caught.value
    return caught.value


# -- bytes -----------------------------------------------------------------------------------------------------------
def mutate(data: bytes, rng: random.Random) -> bytes:
    at, n = rng.randrange(len(data)), rng.choice((1, 1, 2, 8, 64))
    match rng.randrange(6):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + bytes(rng.randrange(256) for _ in range(n)) + data[at + n :]
        case 2:
            return data[:at] + bytes(rng.randrange(256) for _ in range(n)) + data[at:]
        case 3:
            return data[:at] + data[at + n :]
        case 4:
            return data[:at] + data[: rng.randrange(len(data))] + data[at:]
        case _:
            return data[:at] + data[at:][::-1]


NAMES = ["manifest.json", "state.json", "agent.safetensors", "buffer@0000.safetensors"]


@pytest.mark.parametrize("name", NAMES)
def test_any_mutation_of_any_file_is_found_and_named(name: str, tmp_path: Path) -> None:
    folder = sample(tmp_path)
    path, rng = folder / name, random.Random(name)
    original = path.read_bytes()
    for _ in range(150):
        mutated = mutate(original, rng)
        if mutated == original:
            continue
        path.write_bytes(mutated)
        with pytest.raises(CheckpointError) as caught:
            load(folder)
        assert caught.value.path == path
    path.write_bytes(original)
    load(folder)


@pytest.mark.parametrize("name", NAMES[1:])
def test_mutations_with_fitting_digests_are_an_error_or_a_value(name: str, tmp_path: Path) -> None:
    folder = sample(tmp_path)
    path, rng = folder / name, random.Random(name)
    original, read = path.read_bytes(), 0
    for _ in range(150):
        path.write_bytes(mutate(original, rng))
        seal(folder)
        try:
            load(folder)
            read += 1
        except CheckpointError as error:
            assert error.path.parent == folder
    assert read < 150


def test_files_that_changed_places_are_found(tmp_path: Path) -> None:
    folder = sample(tmp_path)
    one, other = folder / NAMES[2], folder / NAMES[3]
    aside = one.rename(folder / "x")
    other.rename(one), aside.rename(other)
    refused(lambda: load(folder), tmp_path, folder)
    seal(folder)
    refused(lambda: load(folder), tmp_path, folder)


# -- the manifest ----------------------------------------------------------------------------------------------------
def entry(manifest: dict[str, Any], name: str) -> None:
    manifest["files"][name] = dict(manifest["files"]["state.json"])


MANIFESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "traversal": lambda m: entry(m, "../../outside.safetensors"),
    "absolute": lambda m: entry(m, "/etc/passwd"),
    "backslash": lambda m: entry(m, "..\\x.safetensors"),
    "device": lambda m: entry(m, "/dev/zero"),
    "python": lambda m: entry(m, "agent.py"),
    "no owner": lambda m: entry(m, "other.safetensors"),
    "nul": lambda m: entry(m, "agent\0.safetensors"),
    "no state": lambda m: m["files"].pop("state.json"),
    "files list": lambda m: m.update(files=[1, 2]),
    "file list": lambda m: m["files"].update({"state.json": [1]}),
    "negative": lambda m: m["files"]["state.json"].update(bytes=-1),
    "boolean": lambda m: m["files"]["state.json"].update(bytes=True),
    "digest": lambda m: m["files"]["state.json"].update(sha256="0" * 63),
    "stamp": lambda m: m["files"]["state.json"].update(stamp="../../x"),
    "version text": lambda m: m.update(version="1"),
    "version none": lambda m: m.pop("version"),
    "version huge": lambda m: m.update(version=10**40),
    "version newer": lambda m: m.update(version=99),
    "version zero": lambda m: m.update(version=0),
    "versions": lambda m: m.update(versions=3),
    "created text": lambda m: m.update(created="now"),
    "created huge": lambda m: m.update(created=10**400),
    "keys text": lambda m: m.update(keys="agent"),
    "keys twice": lambda m: m.update(keys=["agent", "agent", "buffer"]),
    "keys path": lambda m: m.update(keys=["agent", "buffer", "../x"]),
    "keys more": lambda m: m.update(keys=["agent", "buffer", "more"]),
    "keys number": lambda m: m.update(keys=[1]),
    "meta list": lambda m: m.update(meta=[]),
    "meta tag": lambda m: m.update(meta={"$": "tuple", "items": []}),
    "meta tensor": lambda m: m.update(meta={"x": {"$": "tensor", "in": "w"}}),
    "meta segment": lambda m: m.update(meta={"x": {"$": "segment", "in": 0, "items": {}}}),
    "meta unknown": lambda m: m.update(meta={"x": {"$": "eval", "code": "1"}}),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_says_odd_things_is_refused(name: str, tmp_path: Path) -> None:
    folder = sample(tmp_path)
    (tmp_path / "outside.safetensors").write_bytes((folder / "agent.safetensors").read_bytes())
    seal(folder, MANIFESTS[name])
    error = refused(lambda: load(folder), tmp_path, folder)
    assert error.path.name in ("manifest.json", "state.json")
    if not name.startswith(("meta", "keys more", "version zero")):
        with pytest.raises(CheckpointError):
            verify(folder)
    if name != "meta unknown":
        with pytest.raises(CheckpointError, match=r"(?s)holds no whole|manifest|state"):
            newest(tmp_path)
            load(newest(tmp_path)[0])
            raise AssertionError("it was loaded")


def test_a_manifest_of_huge_size_is_not_read(tmp_path: Path) -> None:
    folder = sample(tmp_path)
    os.truncate(folder / "manifest.json", 2**40)  # sparse
    assert "larger than any manifest" in str(refused_quick(lambda: load(folder)))


def refused_quick(call: Callable[[], Any]) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"format": "uniarena-checkpoint", "x": NaN}',
        b'{"format": "uniarena-checkpoint", "x": 1e999}',
        b'{"format": "uniarena-checkpoint", "x": ' + b"9" * 100_000 + b"}",
        b"\xff\xfe\x00",
        b"null",
        b"",
        b'{"format": "uniarena-checkpoint"}',
        json.dumps({"format": "uniarena-checkpoint", "sha256": {"$": 1}}).encode(),
    ],
    ids=lambda raw: raw[:30].decode("latin-1"),
)
@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_json_bombs(name: str, raw: bytes, tmp_path: Path) -> None:
    folder = sample(tmp_path)
    (folder / name).write_bytes(raw)
    if name == "state.json":
        seal(folder)
    error = refused(lambda: load(folder), tmp_path, folder)
    assert error.path == folder / name


def test_a_deep_manifest_with_a_fitting_digest(tmp_path: Path) -> None:
    folder = sample(tmp_path)
    deep: Any = 1
    for _ in range(sys.getrecursionlimit() // 3):
        deep = [deep]
    seal(folder, lambda m: m.update(meta={"x": deep}))
    try:
        assert "x" in load(folder)[1]
    except CheckpointError as error:
        assert error.path == folder / "manifest.json"


# -- what lies in the folder -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", ["/dev/zero", "/etc/passwd", "nowhere", "."])
@pytest.mark.parametrize("name", NAMES)
def test_a_link_in_the_place_of_a_file_is_never_followed_into_something_else(
    name: str, target: str, tmp_path: Path
) -> None:
    folder = sample(tmp_path)
    (folder / name).unlink()
    (folder / name).symlink_to(target)
    assert refused_quick(lambda: load(folder)).path == folder / name


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
def test_a_pipe_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    folder = sample(tmp_path)
    for name in NAMES:
        (folder / name).unlink()
        os.mkfifo(folder / name)
        assert "missing" in str(refused_quick(lambda: load(folder)))
        break


def test_files_that_no_manifest_lists_are_not_read(tmp_path: Path) -> None:
    folder = sample(tmp_path)
    (folder / "pickle.pkl").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    (folder / "extra.safetensors").write_bytes(b"\xff" * 100)
    load(folder)
    seal(folder, lambda m: m["files"].pop("agent.safetensors"))
    refused(lambda: load(folder), tmp_path, folder)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 2**62) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        b'{"w":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}',
        b'{"w":{"dtype":"F32","shape":[6],"data_offsets":[0,24]},"v":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}}',
        b'{"w":{"dtype":"F32","shape":[-6],"data_offsets":[0,24]}}',
        b'{"w":{"dtype":"F32","shape":[6,4294967296,4294967296],"data_offsets":[0,24]}}',
        b'{"w":{"dtype":"X9","shape":[6],"data_offsets":[0,24]}}',
        b'{"w":{"dtype":"F64","shape":[3],"data_offsets":[0,24]}}',
        b'{"other":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}}',
    ],
)
def test_safetensors_bombs(header: bytes, tmp_path: Path) -> None:
    folder = sample(tmp_path)
    content = struct.pack("<Q", len(header)) + header + bytes(24) if header.startswith(b"{") else header
    (folder / "agent.safetensors").write_bytes(content)
    seal(folder)
    if b"F64" in header:  # another dtype than was saved: a value, which the agent will not take
        assert load(folder)[0]["agent"]["w"].dtype == torch.float64
    else:
        refused(lambda: load(folder), tmp_path, folder)


BOMBS: dict[str, Any] = {
    "one tensor a thousand times": [{"$": "tensor", "in": "w"}] * 1000,
    "one array a thousand times": [{"$": "array", "in": "w", "dtype": "|u1", "shape": [24]}] * 1000,
    "one segment twice": [{"$": "segment", "in": 0, "items": {}}] * 2,
    "no segment": {"$": "segment", "in": 7, "items": {}},
    "odd segment": {"$": "segment", "in": "../x", "items": {}},
    "huge array": {"$": "array", "in": "w", "dtype": "<f8", "shape": [10**9, 10**9, 0, 3]},
    "negative array": {"$": "array", "in": "w", "dtype": "<f4", "shape": [-6]},
    "huge text": {"$": "array", "in": "w", "dtype": "<U1000000000", "shape": [1]},
    "object array": {"$": "array", "in": "w", "dtype": "|O", "shape": [3]},
    "record array": {"$": "array", "in": "w", "dtype": {"names": ["a"], "formats": ["O"]}, "shape": [3]},
    "no dtype": {"$": "tensor", "in": "w", "dtype": "nonsense", "shape": [6]},
    "a module": {"$": "tensor", "in": "w", "dtype": "_dynamo", "shape": [6]},
    "huge tensor": {"$": "tensor", "in": "w", "dtype": "float8_e5m2", "shape": [2**40, 2**40]},
    "unhashable": {"$": "dict", "items": [[[1], 2]]},
    "not pairs": {"$": "dict", "items": [[1]]},
    "no tag": {"$": None},
    "odd tag": {"$": {"$": "tuple"}},
    "odd name": {"$": "tensor", "in": ["w"]},
    "odd float": {"$": "float", "hex": "00"},
    "odd int": {"$": "int", "hex": "zz"},
    "odd scalar": {"$": "scalar", "dtype": "<f8", "hex": 3},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_state_that_multiplies_or_lies_is_refused(name: str, tmp_path: Path) -> None:
    folder = sample(tmp_path)
    key = "buffer" if "segment" in name else "agent"
    edit(folder, lambda document: document[key].update(parts=[], w=BOMBS[name]))
    error = refused(lambda: load(folder), tmp_path, folder)
    assert error.path.name in ("state.json", "buffer@0007.safetensors")


# -- agents and runs -------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "run"
    uniarena.train(SMALL, run_dir=folder, quiet=True)
    return folder


def forged(run: Path, root: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A copy of the run's last checkpoint whose meta is changed, with digests that fit."""
    target = root / "stranger"
    shutil.copytree(run / "checkpoints" / "32", target)
    seal(target, change)
    return target


def spec(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda manifest: change(manifest["meta"]["agent"])


SPECS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no agent": lambda m: m["meta"].pop("agent"),
    "agent list": lambda m: m["meta"].update(agent=[1]),
    "agent text": lambda m: m["meta"].update(agent="x"),
    "no learner": spec(lambda s: s.pop("learner")),
    "learner text": spec(lambda s: s.update(learner="ppo")),
    "learner number": spec(lambda s: s["learner"].update(type=3)),
    "unknown learner": spec(lambda s: s["learner"].update(type="nonsense")),
    "unknown field": spec(lambda s: s["learner"].update(nonsense=1)),
    "field type": spec(lambda s: s["learner"].update(n_steps="many")),
    "space type": spec(lambda s: s["observation_space"].update(type="Graph")),
    "space text": spec(lambda s: s.update(observation_space="Box")),
    "space shape": spec(lambda s: s["observation_space"].update(shape=["a"])),
    "space dtype": spec(lambda s: s["observation_space"].update(dtype="object")),
    "space bigger": spec(lambda s: s["observation_space"].update(shape=[5], low=0, high=1)),
    "space bomb": spec(lambda s: s["observation_space"].update(shape=[10**6, 10**6], low=0, high=1)),
    "smaller space bomb": spec(lambda s: s["observation_space"].update(shape=[10**5, 10**5], low=0, high=1)),
    "action bomb": spec(lambda s: s["action_map"]["space"].update(n=10**12)),
    "action more": spec(lambda s: s["action_map"]["space"].update(n=3)),
    "action odd": spec(lambda s: s.update(action_map={"space": None, "rescale": 1})),
    "network bomb": spec(lambda s: s["policy"].update(hidden_sizes=[10**5, 10**5])),
    "layer bomb": spec(lambda s: s["policy"].update(hidden_sizes=[4096] * 10_000)),
    "columns": spec(lambda s: s.update(columns="x", normalize_reward={})),
    "seed": spec(lambda s: s.update(seed=-1)),
    "device": spec(lambda s: s.update(device=7)),
    "explorer": spec(lambda s: s.update(explorer={"type": "rnd"})),
    "intrinsic": spec(lambda s: s.update(intrinsic=[{"type": "nonsense"}])),
    "normaliser": spec(lambda s: s.update(normalize_observation={"nonsense": 1})),
    "import": spec(lambda s: s["policy"].update(network="os:system")),
    "import with spaces": spec(lambda s: s["policy"].update(network=" os : system")),
    "import of a learner": spec(lambda s: s["learner"].update(type="os:1")),
    "import of an optimiser": spec(lambda s: s["learner"].update(optimizer={"type": "os:system"})),
    "import of a schedule": spec(
        lambda s: s["learner"].update(learning_rate={"type": "os:system", "start": 1})
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_an_agent_that_is_none_is_refused(name: str, run: Path, tmp_path: Path) -> None:
    folder = forged(run, tmp_path, SPECS[name])
    before = snapshot(tmp_path)
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        Agent.load(folder)
    assert snapshot(tmp_path) == before
    if name.startswith("import"):
        assert isinstance(caught.value, CheckpointError) and "would import" in str(caught.value)


STATES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no learner": lambda d: d["agent"].pop("learner"),
    "learner list": lambda d: d["agent"].update(learner=[]),
    "a weight is text": lambda d: d["agent"]["learner"].update({first(d): "x"}),
    "a weight is missing": lambda d: d["agent"]["learner"].pop(first(d)),
    "a weight too many": lambda d: d["agent"]["learner"].update(more={"$": "tuple", "items": []}),
    "explorer": lambda d: d["agent"].update(explorer=3),
    "bonuses": lambda d: d["agent"].update(bonuses=[1, 2]),
    "no agent": lambda d: d.update(agent=None),
}


def first(document: dict[str, Any]) -> str:
    return next(name for name in document["agent"]["learner"] if name.startswith("model."))


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_is_no_agents_is_refused(name: str, run: Path, tmp_path: Path) -> None:
    folder = forged(run, tmp_path, lambda manifest: None)
    edit(folder, STATES[name])
    with pytest.raises((CheckpointError, ConfigError)):
        Agent.load(folder)


def test_weights_of_other_shapes_are_refused(run: Path, tmp_path: Path) -> None:
    folder = forged(run, tmp_path, lambda manifest: None)
    path = folder / "agent.safetensors"
    tensors = {name: torch.cat([each.reshape(-1)] * 2) for name, each in load_file(path).items()}
    path.unlink()
    save_file(tensors, path)
    seal(folder)
    with pytest.raises(CheckpointError, match=r"holds no agent that can be built here"):
        Agent.load(folder)


CONFIGS = {
    "object tag": "environment: !!python/object/apply:os.system ['touch owned']\n",
    "name tag": "learner: {type: !!python/name:os.system ''}\n",
    "environment by path": "environment: {id: 'os:system'}\nlearner: {type: ppo}\n",
    "wrapper by path": "environment: {id: CartPole-v1, wrappers: [{type: 'os:system'}]}\nlearner: {type: ppo}\n",
    "bare wrapper": "environment: {id: CartPole-v1, wrappers: ['os:system']}\nlearner: {type: ppo}\n",
    "wrappers are text": "environment: {id: CartPole-v1, wrappers: 'os:system'}\nlearner: {type: ppo}\n",
    "learner by path": "environment: {id: CartPole-v1}\nlearner: {type: 'os:system'}\n",
    "optimiser by path": "environment: {id: CartPole-v1}\nlearner: {type: ppo, optimizer: {type: 'os:system'}}\n",
    "template": "environment: {id: '{{ cycler.__init__.__globals__.os.popen(1) }}'}\nlearner: {type: ppo}\n",
    "interpolation": "environment: {id: '${oc.env:HOME}'}\nlearner: {type: ppo}\n",
    "anchors": "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n",
    "list": "- 1\n",
    "binary": "\0\1\2",
    "environment is a number": "environment: 3\nlearner: {type: ppo}\n",
    "empty": "",
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_planted_config_runs_nothing(name: str, run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("a command was run"))
    folder = forged(run, tmp_path, lambda m: m["meta"].update(config=CONFIGS[name]))
    with pytest.raises((CheckpointError, ConfigError)):
        uniarena.evaluate(folder, episodes=1)
    assert not (tmp_path / "owned").exists()


def test_evaluating_writes_nowhere_that_the_checkpoint_names(run: Path, tmp_path: Path) -> None:
    text = (run / "config.yaml").read_text()
    config = yaml.safe_load(text)
    config["environment"]["wrappers"] = [{"type": "RecordVideo", "folder": str(tmp_path / "owned")}]
    folder = forged(run, tmp_path, lambda m: m["meta"].update(config=yaml.safe_dump(config)))
    before = snapshot(tmp_path)
    assert uniarena.evaluate(folder, episodes=1).episodes == 1
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("config", [3, None, ["x"], {"a": 1}])
def test_a_config_that_is_no_text_is_refused(config: Any, run: Path, tmp_path: Path) -> None:
    folder = forged(run, tmp_path, lambda m: m["meta"].update(config=config))
    with pytest.raises(CheckpointError):
        uniarena.evaluate(folder, episodes=1)


def test_a_class_of_the_checkpoints_own_needs_consent(run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "planted.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = forged(run, tmp_path, spec(lambda s: s["policy"].update(network="planted:Net")))
    with pytest.raises(CheckpointError, match=r"would import 'planted:Net'.*trust=True"):
        Agent.load(folder)
    assert "planted" not in sys.modules
    with pytest.raises(SystemExit, match="imported"):  # with consent it is
        Agent.load(folder, trust=True)


@pytest.mark.parametrize("name", ["no callbacks", "counters", "sampler", "threads", "globals", "buffer"])
def test_a_state_that_is_no_runs_is_refused_by_resume(name: str, run: Path, tmp_path: Path) -> None:
    target = tmp_path / "run"
    shutil.copytree(run, target)
    shutil.rmtree(target / "checkpoints" / "best", ignore_errors=True)
    config = yaml.safe_load((target / "config.yaml").read_text())
    config["training"]["total_timesteps"] = 64
    (target / "config.yaml").write_text(yaml.safe_dump(config))
    changes: dict[str, Callable[[dict[str, Any]], Any]] = {
        "no callbacks": lambda d: d["trainer"].pop("callbacks"),
        "counters": lambda d: d["trainer"].update(counters={"nonsense": 1}),
        "sampler": lambda d: d.update(sampler=3),
        "threads": lambda d: d["trainer"].update(threads="many"),
        "globals": lambda d: d["trainer"].update(globals=[1]),
        "buffer": lambda d: d.update(buffer="x"),
    }
    for folder in (target / "checkpoints").iterdir():
        edit(folder, changes[name])
    with pytest.raises(CheckpointError, match=r"does not fit the run's config\.yaml"):
        uniarena.resume(target, quiet=True)


def test_loading_has_no_use_for_what_could_run_code() -> None:
    for path in Path(checkpoint.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {
                "pickle",
                "marshal",
                "cloudpickle",
                "yaml",
            }
            assert not isinstance(node, ast.Name) or node.id not in ("eval", "exec", "compile", "__import__")


def test_digests_are_checked_before_anything_is_parsed(tmp_path: Path, monkeypatch: Any) -> None:
    folder = sample(tmp_path)
    (folder / "agent.safetensors").write_bytes((folder / "agent.safetensors").read_bytes()[::-1])
    monkeypatch.setattr("uniarena.checkpoint.reading.load_file", lambda *_: pytest.fail("it was parsed"))
    refused(lambda: load(folder), tmp_path, folder)


def test_the_manifest_helpers_agree(tmp_path: Path) -> None:
    folder = sample(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert digest_of(manifest) == manifest["sha256"]
    assert render(manifest) == (folder / "manifest.json").read_bytes()
    assert read_meta(folder)["kind"] == "step"
