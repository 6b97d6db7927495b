"""Checkpoints: every value comes back bit for bit, writes are all or nothing, damage is named."""

import enum
import json
import math
import os
import random
import stat
import struct
from collections import OrderedDict, namedtuple
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.state.forging import seal
from uniarena import checkpoint
from uniarena.checkpoint import CheckpointError, files, load, newest, read_meta, save
from uniarena.checkpoint.codec import Aside, decode, encode
from uniarena.envs.spaces import space_from_json, space_to_json
from uniarena.seeding import Streams, global_state

NAN_WITH_PAYLOAD = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]


def same(a: object, b: object) -> bool:
    """Equal in type, structure, dtype, shape and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
        )
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(
            type(x) is type(y) and same(a[x], b[y]) for x, y in zip(a, b, strict=True)
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def sample_state() -> dict[str, object]:
    shared = torch.arange(6.0)
    return {
        "agent": {
            "weights": OrderedDict({"0.weight": torch.randn(3, 4), "0.bias": torch.zeros(3)}),
            "half": torch.randn(2, 2).bfloat16(),
            "flag": torch.tensor([True, False]),
            "scalar": torch.tensor(2.5),
            "empty": torch.empty(0, 3, dtype=torch.int64),
        },
        "views": [shared, shared[:3], shared.view(2, 3).t()],
        "plain": {"best": -math.inf, "note": "héllo 世界 \ud800", "none": None, "count": 3, "big": 2**200},
    }


EXACT = [
    None,
    True,
    False,
    0,
    -1,
    2**53 + 1,
    -(2**200),
    1.5,
    -0.0,
    5e-324,
    0.1,
    math.nan,
    NAN_WITH_PAYLOAD,
    math.inf,
    -math.inf,
    "",
    'text\n"quoted" 世界',
    "\ud800",
    [],
    {},
    (),
    (1, (2.0, "x")),
    [(), [None]],
    {1: "a", "1": "b", None: 1, (2, "x"): 2, False: 3, 2.5: 4},
    {"$": "tensor", "in": "x"},
    {"a.b": 1, "a": {"b": 2}},
    np.float32(0.1),
    np.float64(math.nan),
    np.float16(1),
    np.int8(-3),
    np.uint64(2**64 - 1),
    np.bool_(True),
    np.complex128(1 + 2j),
    np.str_("世"),
    np.str_(""),
    np.datetime64("2020-01-01"),
    np.longdouble(1) / 3,
    np.array(3.0),
    np.array(True),
    np.array(7, dtype=np.uint16),
    np.zeros((0, 2), np.float32),
    np.arange(6)[::-2],
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array([1, 2], ">f4"),
    np.array(["a", "bcd"]),
    np.array(["2020-01-01", "NaT"], "datetime64[D]"),
    np.array([1 + 2j], np.complex64),
    np.array([math.nan, -0.0]),
    np.arange(3, dtype=np.uint32),
    np.array([], dtype=">i8"),
    torch.tensor(1.0),
    torch.tensor([True, False]),
    torch.empty(0),
    torch.empty(2, 0, 3, dtype=torch.uint8),
    torch.tensor([1, 65535], dtype=torch.uint16),
    torch.tensor([1 + 2j]),
    torch.tensor(1j, dtype=torch.complex128),
    torch.tensor([math.nan, math.inf]),
    torch.randn(3, 4).t(),
    torch.randn(4)[::2],
    torch.ones(2).to(torch.float8_e5m2),
    torch.randn(2, dtype=torch.complex64).conj(),
    torch.tensor([2**62], dtype=torch.int64),
    torch.ones(1).expand(3),
]


@pytest.mark.parametrize("value", EXACT, ids=[f"{i}-{type(value).__name__}" for i, value in enumerate(EXACT)])
def test_value_comes_back_bit_for_bit(value: object, tmp_path: Path) -> None:
    state = {"key": value, "inside": {"deeper": [value, (value,)]}}
    save(tmp_path / "c", state, {})
    loaded, _ = load(tmp_path / "c")
    expected = value.contiguous().resolve_conj() if isinstance(value, torch.Tensor) else value
    assert same(loaded["key"], expected)
    assert same(loaded["inside"]["deeper"][1][0], expected)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.booleans() | st.none(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(plain)
def test_any_plain_data_survives_json(value: object) -> None:
    aside = Aside()
    text = json.dumps(encode(value, "", aside), allow_nan=False)
    assert same(decode(json.loads(text), aside.tensors), value)


def test_containers_that_only_behave_like_dicts_become_dicts(tmp_path: Path) -> None:
    save(tmp_path / "c", {"a": OrderedDict(x=1), "size": torch.Size([2, 3])}, {})
    assert load(tmp_path / "c")[0] == {"a": {"x": 1}, "size": (2, 3)}
    assert type(load(tmp_path / "c")[0]["a"]) is dict


def test_loaded_arrays_are_writable_and_do_not_depend_on_the_files(tmp_path: Path) -> None:
    save(tmp_path / "c", {"a": {"x": np.arange(3.0), "y": torch.ones(3), "z": np.array([1], ">i4")}}, {})
    state = load(tmp_path / "c")[0]["a"]
    checkpoint.remove(tmp_path / "c")
    for leaf in state.values():
        leaf += 1
    assert (
        state["x"].tolist() == [1, 2, 3] and state["y"].tolist() == [2, 2, 2] and state["z"].tolist() == [2]
    )


def test_tensors_that_share_memory_come_back_with_their_own_values(tmp_path: Path) -> None:
    flat = torch.arange(12.0)
    parts = {"flat": flat, "a": flat[:6].view(2, 3), "b": flat[6:], "again": flat}
    save(tmp_path / "c", {"model": parts}, {})
    state = load(tmp_path / "c")[0]["model"]
    assert all(same(state[name], part) for name, part in parts.items())
    state["a"].zero_()
    assert same(state["flat"], flat)


def test_saving_only_reads_the_state(tmp_path: Path) -> None:
    state = sample_state()
    weight = torch.nn.Parameter(torch.randn(3))
    weight.grad = torch.ones(3)
    state["parameter"] = weight
    before = {name: value.clone() for name, value in state["agent"]["weights"].items()}  # type: ignore[index]
    save(tmp_path / "c", state, {})
    assert all(torch.equal(before[n], v) for n, v in state["agent"]["weights"].items())  # type: ignore[index]
    assert weight.requires_grad and torch.equal(weight.grad, torch.ones(3))
    assert type(load(tmp_path / "c")[0]["parameter"]) is torch.Tensor


def test_real_states_round_trip(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    streams = Streams(3)
    streams.torch("a"), streams.numpy("b").random(3)
    state = {"optimizer": optimizer.state_dict(), "streams": streams.state_dict(), "globals": global_state()}
    save(tmp_path / "c", state, {})
    loaded = load(tmp_path / "c")[0]
    assert same(loaded["streams"], state["streams"]) and same(loaded["globals"], state["globals"])
    optimizer.load_state_dict(loaded["optimizer"])
    restored = Streams(3)
    restored.load_state_dict(loaded["streams"])
    assert np.array_equal(restored.numpy("b").random(4), streams.numpy("b").random(4))


def test_numpy_scalars_spaces_and_schedules_load_without_pickle(tmp_path: Path) -> None:  # case B50
    space = gymnasium.spaces.Dict(
        {"pos": gymnasium.spaces.Box(-np.inf, np.inf, (3,)), "task": gymnasium.spaces.Discrete(4, start=-1)}
    )
    state = {
        "lr": np.float64(3e-4),
        "steps": np.int64(12),
        "schedule": {"type": "linear", "start": np.float32(1), "end": 0.0},
        "space": space_to_json(space),
    }
    save(tmp_path / "c", state, {"space": space_to_json(space)})
    assert {path.suffix for path in (tmp_path / "c").iterdir()} <= {".json", ".safetensors"}
    loaded, meta = load(tmp_path / "c")
    assert same(loaded, state)
    assert space_from_json(loaded["space"]) == space_from_json(meta["space"]) == space


class Colour(enum.Enum):
    RED = 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        b"raw",
        1j,
        Colour.RED,
        Point(1, 2),
        lambda: 0,
        np.array([object()]),
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
        np.zeros(2, [("a", "f4")]),
        np.ma.array([1.0], mask=[True]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_cannot_be_saved_is_named_and_nothing_is_written(value: object, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"in 'agent': outer\.1 is a .* cannot be saved"):
        save(tmp_path / "c", {"agent": {"outer": [0, value]}}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_contains_itself_is_refused(tmp_path: Path) -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(CheckpointError, match="could not be written"):
        save(tmp_path / "c", {"loop": loop}, {})


@pytest.mark.parametrize("key", ["a/b", "", "..\\x", 3])
def test_a_top_level_key_must_be_a_file_name(key: object, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="names a file"):
        save(tmp_path / "c", {key: 1}, {})  # type: ignore[dict-item]


def test_meta_is_plain_data_and_readable_alone(tmp_path: Path) -> None:
    meta = {"counters": {"env_steps": 10}, "best": -math.inf, "shape": (3,), "name": "跑"}
    save(tmp_path / "c", {"agent": torch.ones(2)}, meta)
    (tmp_path / "c" / "agent.safetensors").unlink()
    assert same(read_meta(tmp_path / "c"), meta)
    with pytest.raises(CheckpointError, match="meta holds a tensor or array at 'x'"):
        save(tmp_path / "d", {}, {"x": torch.ones(2)})


def test_only_some_keys_can_be_read_though_others_are_damaged(tmp_path: Path) -> None:
    save(tmp_path / "c", {"agent": {"w": torch.ones(2)}, "buffer": {"x": torch.zeros(9)}, "empty": {}}, {})
    (tmp_path / "c" / "buffer.safetensors").write_bytes(b"gone")
    state, _ = load(tmp_path / "c", only=("agent", "empty"))
    assert set(state) == {"agent", "empty"} and torch.equal(state["agent"]["w"], torch.ones(2))
    with pytest.raises(CheckpointError, match=r"buffer\.safetensors"):
        load(tmp_path / "c")
    with pytest.raises(CheckpointError, match="holds no 'optimizer'; it holds agent, buffer, empty"):
        load(tmp_path / "c", only=("optimizer",))


def test_paths_with_spaces_and_other_scripts(tmp_path: Path) -> None:
    folder = tmp_path / "мой run 实验" / "check points" / "100"
    save(folder, sample_state(), {"name": "实验"})
    assert same(load(folder)[0]["agent"]["flag"], torch.tensor([True, False]))
    assert newest(folder.parent)[0] == folder


def test_everyone_may_read_what_the_umask_allows(tmp_path: Path) -> None:
    save(tmp_path / "c", {"a": torch.ones(1)}, {})
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "c").iterdir()}
    assert len(set(modes.values())) == 1, modes


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "agent.safetensors", "views.safetensors"])
def test_any_flipped_byte_is_found_and_its_file_named(name: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "c", sample_state(), {"counters": {"env_steps": 5}})
    path = folder / name
    original = path.read_bytes()
    rng = random.Random(0)
    for position in sorted(rng.sample(range(len(original)), min(150, len(original)))):
        damaged = bytearray(original)
        damaged[position] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError) as caught:
            load(folder)
        assert caught.value.path == path and name in str(caught.value)
    path.write_bytes(original)
    load(folder)


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "agent.safetensors"])
@pytest.mark.parametrize("damage", ["truncate", "extend", "delete", "empty"])
def test_files_of_another_length_are_found(name: str, damage: str, tmp_path: Path) -> None:
    path = save(tmp_path / "c", sample_state(), {}) / name
    data = path.read_bytes()
    if damage == "delete":
        path.unlink()
    else:
        path.write_bytes({"truncate": data[: len(data) // 2], "extend": data + b" ", "empty": b""}[damage])
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path / "c")
    assert caught.value.path == path


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "VERSION", 3)
    save(tmp_path / "c", {}, {})
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"format version 3, .*; this version reads up to 2\. Upgrade"):
        load(tmp_path / "c")


def forge(folder: Path, document: object) -> None:
    """A checkpoint by someone who knows the format: hashes fit, the content does not."""
    save(folder, {"agent": {"x": torch.ones(2)}}, {})
    (folder / "state.json").write_text(json.dumps(document))
    seal(folder)


@pytest.mark.parametrize(
    "value",
    [
        {"$": "pickle", "hex": "80"},
        {"$": "tensor", "in": "nowhere"},
        {"$": "array", "in": "x", "dtype": "O", "shape": [1]},
        {"$": "scalar", "dtype": "<U1000000000", "hex": ""},
        {"$": "scalar", "dtype": "O", "hex": "00" * 8},
        {"$": "array", "in": "x", "dtype": "<f8", "shape": [10**12]},
        {"$": "tensor", "in": "x", "dtype": "load", "shape": [1]},
        {"$": ["a"]},
        {"$": "float", "hex": "zz"},
        {"$": "dict", "items": [[[1], 2]]},
        {"$": "tuple"},
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_a_forged_state_is_an_error_not_code(value: object, tmp_path: Path) -> None:
    forge(tmp_path / "c", {"agent": value})
    with pytest.raises(CheckpointError, match=r"state\.json: cannot be read"):
        load(tmp_path / "c")


def test_no_pickle_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "dump", "dumps"):
        monkeypatch.setattr(pickle, name, refuse)
    save(tmp_path / "c", sample_state(), {})
    load(tmp_path / "c")


# -- all or nothing --------------------------------------------------------------------------------
@pytest.mark.parametrize("step", ["mkdir", "_write_bytes", "save_file", "_fsync", "rename"])
def test_a_disk_error_leaves_the_old_checkpoint_and_no_litter(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "c", {"agent": torch.zeros(2)}, {})

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    if step in ("mkdir", "rename"):
        monkeypatch.setattr(Path, step, full)
    else:
        monkeypatch.setattr(files, step, full)
    state = {"agent": torch.ones(2)}
    with pytest.raises(CheckpointError, match="No space left on device"):
        save(folder, state, {})
    monkeypatch.undo()
    assert torch.equal(state["agent"], torch.ones(2))
    assert torch.equal(load(folder)[0]["agent"], torch.zeros(2))
    assert list(tmp_path.iterdir()) == [folder]


def test_the_old_one_returns_when_the_second_rename_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "c", {"agent": 1}, {})
    rename = Path.rename

    def fail_for_temporary(self: Path, target: Path) -> Path:
        if self.name.endswith(".tmp"):
            raise OSError("refused")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_temporary)
    with pytest.raises(CheckpointError, match="refused"):
        save(folder, {"agent": 2}, {})
    monkeypatch.undo()
    assert load(folder)[0] == {"agent": 1} and list(tmp_path.iterdir()) == [folder]


def test_an_interrupt_while_saving_leaves_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "save_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "c", {"agent": torch.ones(1)}, {})
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    original = files._write_bytes

    def watch(path: Path, data: bytes) -> None:
        written.append((path.name, sorted(p.name for p in path.parent.iterdir())))
        original(path, data)

    monkeypatch.setattr(files, "_write_bytes", watch)
    save(tmp_path / "c", {"a": torch.ones(1), "b": torch.ones(1)}, {})
    assert written[-1] == ("manifest.json", ["a.safetensors", "b.safetensors", "state.json"])


def test_saving_over_a_checkpoint_replaces_all_of_it(tmp_path: Path) -> None:
    save(tmp_path / "best", {"agent": torch.ones(2), "extra": torch.ones(2)}, {"n": 1})
    save(tmp_path / "best", {"agent": torch.zeros(3)}, {"n": 2})
    state, meta = load(tmp_path / "best")
    assert list(state) == ["agent"] and meta == {"n": 2} and state["agent"].shape == (3,)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best"]
    assert not (tmp_path / "best" / "extra.safetensors").exists()


def test_a_folder_that_is_no_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match=r"holds 'thesis\.tex', so it is no checkpoint"):
        save(tmp_path / "home", {}, {})
    with pytest.raises(CheckpointError, match="is not a folder"):
        save(tmp_path / "file", {}, {})
    assert (tmp_path / "home" / "thesis.tex").read_text() == "years of work"


# -- finding ---------------------------------------------------------------------------------------
def series(root: Path, count: int = 3) -> list[Path]:
    return [
        save(root / str(100 * k), {"agent": torch.full((50,), float(k))}, {"k": k})
        for k in range(1, count + 1)
    ]


def test_a_truncated_newest_checkpoint_is_passed_over_with_its_reason(tmp_path: Path) -> None:
    _, second, third = series(tmp_path)
    path = third / "agent.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    found, broken = newest(tmp_path)
    assert found == second
    assert [folder for folder, _ in broken] == [third]
    assert "agent.safetensors" in broken[0][1] and "cut off" in broken[0][1]


def test_newest_is_the_last_written_not_the_highest_number(tmp_path: Path) -> None:
    series(tmp_path)
    again = save(tmp_path / "150", {"agent": 1}, {})
    assert newest(tmp_path) == (again, [])


def test_newest_without_any_whole_checkpoint_lists_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no checkpoint.*--resume-if-exists"):
        newest(tmp_path / "missing")
    first, second = series(tmp_path, 2)
    (first / "manifest.json").unlink()
    (second / "state.json").write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"(?s)no whole checkpoint.*manifest\.json: is missing.*state\.json"
    ):
        newest(tmp_path)


def test_a_replacement_cut_between_its_renames_is_found(tmp_path: Path) -> None:
    folder = save(tmp_path / "best", {"agent": 1}, {})
    aside = tmp_path / ".best.123-0abc.old"
    folder.rename(aside)
    assert newest(tmp_path)[0] == aside
    checkpoint.sweep(tmp_path)
    assert newest(tmp_path)[0] == aside
    save(folder, {"agent": 2}, {})
    assert newest(tmp_path) == (folder, [])
    checkpoint.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [folder]


def test_sweep_deletes_only_what_a_killed_save_left(tmp_path: Path) -> None:
    series(tmp_path, 1)
    for name in (".100.1-ab.tmp", ".100.1-ab.del", ".git", ".mine.tmp"):
        (tmp_path / name).mkdir()
    assert newest(tmp_path)[1] == []
    checkpoint.sweep(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".git", ".mine.tmp", "100"]


def test_locate_prefers_the_best_of_a_run_and_takes_a_checkpoint_as_it_is(tmp_path: Path) -> None:
    folders = series(tmp_path / "checkpoints")
    assert checkpoint.locate(tmp_path) == folders[-1]
    best = save(tmp_path / "checkpoints" / "best", {"agent": torch.ones(4)}, {})
    save(tmp_path / "checkpoints" / "400", {"agent": 1}, {})
    assert checkpoint.locate(tmp_path) == checkpoint.locate(tmp_path / "checkpoints") == best
    assert checkpoint.locate(folders[0]) == folders[0]
    (best / "agent.safetensors").unlink()
    assert checkpoint.locate(tmp_path) == tmp_path / "checkpoints" / "400"
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoint.locate(tmp_path / "nothing")


def test_import_paths_need_trust(tmp_path: Path) -> None:
    spec = {"policy": {"network": "mlp"}, "intrinsic": [{"type": "my_package.nets:Net"}]}
    with pytest.raises(CheckpointError, match=r"would import 'my_package\.nets:Net'.*trust=True"):
        checkpoint.check_trust(spec, tmp_path, trust=False)
    checkpoint.check_trust(spec, tmp_path, trust=True)
    harmless = {
        "policy": {"network": "mlp"},
        "device": "cuda:1",
        "observation_space": {"spaces": [["a:b", {}]]},
    }
    checkpoint.check_trust(harmless, tmp_path, trust=False)
    for odd in ("os:1", "my module:Net", "a/b:c", " os:system"):
        with pytest.raises(CheckpointError, match="would import"):
            checkpoint.check_trust({"policy": [{"network": odd}]}, tmp_path, trust=False)
