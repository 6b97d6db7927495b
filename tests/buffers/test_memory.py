"""How much memory a buffer takes: said before, refused where it does not fit, on disk where that is asked for."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.buffers.rollouts import TWO, generator, line, same, spec
from uniarena.buffers import memory
from uniarena.buffers.frames import StackedLeaf
from uniarena.buffers.prioritized import PrioritizedConfig, PrioritizedReplay
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig
from uniarena.config import ConfigError, parse

ATARI = spaces.Box(0, 255, (4, 84, 84), np.uint8)


def stored_bytes(buffer: ReplayBuffer) -> int:
    ring = buffer.ring
    arrays = [ring.table, *ring.frames, ring.flags, ring.reward, ring.final, ring.age, ring.until]
    return sum(array.nbytes for array in arrays)


def test_stacked_images_cost_one_frame_a_step(caplog: pytest.LogCaptureFixture) -> None:  # case B44
    with caplog.at_level(logging.INFO, "uniarena"):
        buffer = ReplayBuffer(
            ReplayConfig(capacity=100_000), spec(observation_space=ATARI, stacks=(StackedLeaf("", 4, 0),))
        )
    assert 0.7e9 < stored_bytes(buffer) < 0.72e9  # 84 · 84 · 100k
    assert "100,001 transitions of 7,064 bytes: 0.71 GB of RAM" in caplog.text


def test_observations_are_not_kept_twice_nor_as_other_types() -> None:
    buffer = ReplayBuffer(ReplayConfig(capacity=1000), spec(observation_space=ATARI))
    assert stored_bytes(buffer) < 1001 * (4 * 84 * 84 + 40)


def test_what_does_not_fit_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_ram", lambda: 10_000_000_000)
    with pytest.raises(ConfigError) as caught:
        ReplayBuffer(ReplayConfig(capacity=1_000_000), spec(observation_space=ATARI))
    text = str(caught.value)
    assert "28.24 GB of RAM; 10.00 GB are free" in text and "agent.buffer.capacity" in text
    assert "to 318," in text and "memory_map" in text and "frame_stack" in text


def test_what_a_machine_has_left_is_known() -> None:
    assert 0 < memory.available_ram() < 1 << 60


def test_the_books_of_priorities_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "uniarena"):
        PrioritizedReplay(PrioritizedConfig(capacity=1_000_000), spec())
    assert "34 MB of RAM" in caplog.text  # 16 stored, 9 of flags and reward, 8.6 of the tree


@pytest.mark.parametrize(
    "count, text", [(7.1e8, "0.71 GB"), (3.1e10, "31.00 GB"), (9.9e6, "10 MB"), (2e3, "2 kB")]
)
def test_sizes_are_written_for_people(count: float, text: str) -> None:
    assert memory.gigabytes(count) == text


def fill(buffer: ReplayBuffer) -> None:
    for start in range(0, 300, 3):
        end = {2: start + 3.0}
        buffer.add(
            line([start, start + 1, start + 2], -1.0, first=[0], truncated=[2], finals=end, last_first=True)
        )


def test_memory_mapped_rows_are_the_same_and_their_files_go(tmp_path: Path) -> None:
    mapped = ReplayBuffer(ReplayConfig(capacity=250, memory_map=str(tmp_path / "fast")), spec())
    plain = ReplayBuffer(ReplayConfig(capacity=250), spec())
    for buffer in (mapped, plain):
        fill(buffer)  # more ends than the first memory for them
    assert {file.name for file in tmp_path.rglob("*") if file.is_file()} == {"finals", "lock", "rows"}
    assert same(mapped.sample(generator()), plain.sample(generator()))
    restored = ReplayBuffer(ReplayConfig(capacity=250, memory_map=str(tmp_path)), spec())
    restored.load_state_dict(plain.state_dict())
    assert same(restored.sample(generator()), plain.sample(generator()))
    del mapped, restored, buffer
    gc.collect()
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_what_a_killed_process_left_on_disk_goes_with_the_next_buffer(tmp_path: Path) -> None:
    """Memory that is in use stays, also that of other processes; a folder of someone else's is left alone."""
    living = ReplayBuffer(ReplayConfig(capacity=250, memory_map=str(tmp_path)), spec())
    [used] = tmp_path.iterdir()
    (tmp_path / "replay-killed").mkdir()
    for name in ("lock", "rows"):
        (tmp_path / "replay-killed" / name).touch()
    (tmp_path / "replay-of-mine").mkdir()
    (tmp_path / "replay-of-mine" / "rows").touch()
    script = (
        "from tests.buffers.rollouts import spec; from uniarena.buffers.replay import ReplayBuffer, ReplayConfig; "
        f"ReplayBuffer(ReplayConfig(capacity=9, memory_map={str(tmp_path)!r}), spec())"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environ)
    assert {path.name for path in tmp_path.iterdir()} == {used.name, "replay-of-mine"}
    fill(living)
    assert living.size == 250


def test_only_books_are_in_ram_when_rows_are_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "available_ram", lambda: 1_000_000)
    stacks = (StackedLeaf("", 4, 0),)
    with caplog.at_level(logging.INFO, "uniarena"):
        ReplayBuffer(
            ReplayConfig(capacity=10_000, memory_map=str(tmp_path)),
            spec(observation_space=ATARI, stacks=stacks),
        )
    assert f"71 MB in {tmp_path} and 130 kB of RAM" in caplog.text


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(memory.shutil, "disk_usage", lambda folder: Usage)
    with pytest.raises(ConfigError, match="of 16 bytes needs 16 kB in"):
        ReplayBuffer(ReplayConfig(capacity=1000, memory_map=str(tmp_path / "new" / "er")), spec())


def test_sections_of_a_config_are_understood() -> None:
    cfg: Any = parse(
        PrioritizedConfig,
        {"capacity": "1e4", "her": {}, "beta": {"start": 0.5}, "alpha": 0.7},
        "agent.buffer",
    )
    assert (
        cfg.capacity == 10_000 and cfg.her.strategy == "future" and cfg.beta.end == 0.0 and cfg.alpha == 0.7
    )
    with pytest.raises(ConfigError, match="capacity"):
        parse(ReplayConfig, {"capacity": 0}, "agent.buffer")
    with pytest.raises(ConfigError, match="ratio"):
        parse(ReplayConfig, {"her": {"ratio": 2}}, "agent.buffer")


def test_a_spec_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="n_step is 0"):
        spec(n_step=0)
    assert torch.device("cpu") == spec(policy_space=TWO).device
