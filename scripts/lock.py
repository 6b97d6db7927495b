"""Rewrite constraints.txt: an exact version of everything that the extras in `all`, `dev` and `docs` install.

Run it by `make lock` after a dependency in pyproject.toml changes. pip resolves in the environment it is run
from but installs nothing. torch keeps its pin unless --torch names another.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
HEADER = """\
# What `make` installs, to the last version, so that a result seen once can be seen again.
# torch has no local part (+cpu, +cu130), so that the pin takes whichever build of it pip is pointed at.
"""


def pinned_torch() -> str:
    """The torch version that constraints.txt names now."""
    found = re.search(r"^torch==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{CONSTRAINTS.name} names no torch: say which, as in --torch 2.13.0")
    return found[1]


def resolve(torch: str) -> dict[str, str]:
    """Name to version of all that `.[all,dev,docs]` would install."""
    with tempfile.TemporaryDirectory() as folder:
        cap, report = Path(folder, "cap.txt"), Path(folder, "report.json")
        cap.write_text(f"torch=={torch}\n")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*pip, "--report", report, "-c", cap, f"{ROOT}[all,dev,docs]"], check=True)
        packages = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
    return {re.sub(r"[-_.]+", "-", p["name"]).lower(): p["version"].split("+")[0] for p in packages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", metavar="VERSION", help="pin this torch (default: the pin there is)")
    torch = parser.parse_args().torch or pinned_torch()
    pins = resolve(torch)
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
    # The accelerator libraries of a torch build are pinned by that build, and differ from machine to machine.
    skipped = re.compile(r"(nvidia-|triton$|cuda-)")
    lines = [f"{n}=={v}" for n, v in sorted(pins.items()) if n != own and not skipped.match(n)]
    CONSTRAINTS.write_text(HEADER + "\n".join(lines) + "\n")
    print(f"{CONSTRAINTS.name}: {len(lines)} pins")


if __name__ == "__main__":
    main()
