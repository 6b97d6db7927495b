"""Runs that are disturbed and continued: what does it, and how two of them are compared bit for bit.

Every part of a run is the command line in a process of its own, forked from a clean server that has only
imported things, so that nothing but the run folder goes from one part to the next.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from uniarena import checkpoint, cli, provenance
from uniarena.run import single

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "tests.resume.runs",
        "torch._dynamo",  # optimisers import it
        "uniarena.run",
        "uniarena.learners.on_policy.policy_gradient",
        "uniarena.learners.off_policy.dqn",
        "uniarena.learners.off_policy.sac",
        "gymnasium.envs.classic_control",
        "numpy.ma",
        "pydantic.json_schema",
        "pydantic.type_adapter",
        "yaml",
    ]
)

KILLED, INTERRUPTED = -signal.SIGKILL, 130
CLOCK = ("wall_s", "fps", "updates_per_s", "wall", "loop_seconds", "evaluation_seconds")
"""What depends on how fast the machine is; `system/…` does too."""


class Disturb:
    """Disturbs its own process in the middle of an iteration, as the environment variable DISTURB says.

    `KILL@5`, `INT@5` and `INT,INT@5` send signals in the fifth iteration of the process; `error@5` raises;
    `stop@5` asks for an end. Nothing happens where the variable is not set.
    """

    def __init__(self) -> None:
        self.what, _, at = os.environ.get("DISTURB", "@0").partition("@")
        self.left = int(at)

    def on_batch_collected(self, trainer: Any, event: Any) -> None:
        """In the middle of what is saved: counters have moved, the update is to come."""
        self.left -= 1
        if self.left != 0:
            return
        workers = [child.pid for child in multiprocessing.active_children()]
        (trainer.run_dir / "workers.json").write_text(json.dumps(workers), encoding="utf-8")
        if self.what == "error":
            raise ZeroDivisionError("disturbed")
        if self.what == "stop":
            return trainer.request_stop("enough")
        for name in self.what.split(","):
            os.kill(os.getpid(), getattr(signal, f"SIG{name}"))


def train(config: Mapping[str, Any], folder: Path, disturb: str = "") -> int:
    """`uniarena train` in a new process → its exit code; `folder` becomes the run's."""
    file = folder.with_suffix(".json")
    listeners = [*config.get("callbacks", ()), {"type": "tests.resume.runs:Disturb"}]
    file.write_text(json.dumps({**config, "callbacks": listeners}), encoding="utf-8")
    return command("train", str(file), "--run-dir", str(folder), "--quiet", disturb=disturb)


def resume(folder: Path, disturb: str = "") -> int:
    """`uniarena resume` in a new process → its exit code."""
    return command("resume", str(folder), "--quiet", disturb=disturb)


def command(*arguments: str, disturb: str = "") -> int:
    """A `uniarena` command in a process that knows nothing of this one → its exit code."""
    return ended(start(_command, arguments, disturb), f"uniarena {' '.join(arguments)}")


def start(work: Callable[..., None], *arguments: Any) -> Any:
    """A process that has imported everything, as `work` finds it, and knows nothing of this one."""
    with pytest.MonkeyPatch.context() as patch:  # the server, started now if it is not there, must find us
        patch.setenv("PYTHONPATH", os.pathsep.join(path or "." for path in sys.path))
        process = SERVER.Process(target=work, args=arguments)
        process.start()
    return process


def ended(process: Any, name: str) -> int:
    """Wait for a process → its exit code."""
    process.join(timeout=120)
    code = process.exitcode
    if code is None:
        process.kill()
        raise TimeoutError(f"{name} did not end")
    return int(code)


def _command(arguments: tuple[str, ...], disturb: str) -> None:
    if disturb:
        os.environ["DISTURB"] = disturb
    run_command(arguments)


def run_command(arguments: tuple[str, ...]) -> None:
    """The command line in this process, which it ends."""
    multiprocessing.set_start_method("fork", force=True)  # of environment workers, as in a process of a shell
    hurry(pytest.MonkeyPatch())
    sys.argv = ["uniarena", *arguments]
    cli.main()


def hurry(patch: pytest.MonkeyPatch) -> None:
    """Leave out what takes longer than these short runs and is tested elsewhere."""
    patch.setattr(provenance, "write_provenance", lambda *_, **__: {})
    patch.setattr(single, "portable", lambda *_: {})
    patch.setattr(os, "fsync", lambda file: None)


def differences(whole: Path, other: Path) -> list[str]:
    """Where the last checkpoints and the figures of two runs differ; empty: bit for bit the same."""
    states = [checkpoint.load(last_checkpoint(folder)) for folder in (whole, other)]
    found = [*differ(states[0][0], states[1][0], "state")]
    found += differ(states[0][1]["counters"], states[1][1]["counters"], "counters")
    found += differ(figures(whole), figures(other), "metrics.jsonl")
    return found


def last_checkpoint(folder: Path) -> Path:
    """The one with the most environment steps."""
    return max((folder / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))


def figures(folder: Path) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl` without what depends on the clock and the machine."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if not _clock(k)} for line in lines]


def _clock(name: Any) -> bool:
    return name in CLOCK or str(name).startswith("system/")


def differ(a: Any, b: Any, where: str) -> Iterator[str]:
    """The paths at which two trees of plain data are not the same, bit for bit."""
    if type(a) is not type(b):
        yield f"{where}: {type(a).__name__} and {type(b).__name__}"
    elif isinstance(a, dict):
        names = [{name for name in tree if not _clock(name)} for tree in (a, b)]
        if names[0] != names[1]:
            yield f"{where}: only in one: {sorted(map(str, names[0] ^ names[1]))}"
        for name in a:
            if name in names[0] & names[1]:
                yield from differ(a[name], b[name], f"{where}.{name}")
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            yield f"{where}: {len(a)} and {len(b)} entries"
        for index, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from differ(x, y, f"{where}.{index}")
    elif isinstance(a, (torch.Tensor, np.ndarray)):
        if a.dtype != b.dtype or a.shape != b.shape or not _same_bytes(a, b):
            yield f"{where}: {a.reshape(-1)[:3]} and {b.reshape(-1)[:3]}"
    elif a != b and not (a != a and b != b):
        yield f"{where}: {a!r} and {b!r}"


def _same_bytes(a: Any, b: Any) -> bool:
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
