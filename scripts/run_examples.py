"""Run every story in examples/ as its reader would, one after the other, and say how long each took.

usage: run_examples.py [NAME…]     only those examples/NAME.py

A file whose name begins with an underscore is a part of a story and not run. The first failure ends it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 300  # only against one that hangs


def stories(names: list[str]) -> list[Path]:
    """The examples to run; those named, or all."""
    if names:
        return [ROOT / "examples" / f"{name}.py" for name in names]
    found = sorted((ROOT / "examples").rglob("*.py"))
    return [path for path in found if not path.name.startswith("_")]


def run(path: Path) -> str | None:
    """Run one; None if it went well, else what it printed."""
    try:
        done = subprocess.run(
            [sys.executable, path],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        return f"{error.output or ''}\nnot done after {LIMIT_S} s"
    return None if done.returncode == 0 else f"{done.stdout}\nexit code {done.returncode}"


def main() -> int:
    paths = stories(sys.argv[1:])
    for path in paths:
        started = time.perf_counter()
        fault = run(path)
        print(
            f"{path.relative_to(ROOT)}  {time.perf_counter() - started:.1f} s{'  FAILED' if fault else ''}",
            flush=True,
        )
        if fault is not None:
            print(fault)
            return 1
    print(f"examples: {len(paths)} run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
