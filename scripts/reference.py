"""Build the API reference from the docstrings: HTML pages in build/docs, one for each module. Needs the extra `docs`.

usage: reference.py [FOLDER]
"""

from __future__ import annotations

import pkgutil
import shutil
import sys
import warnings
from pathlib import Path

import pdoc

import uniarena

ROOT = Path(__file__).resolve().parent.parent


def modules() -> list[str]:
    """Every public module, each by name: a package that lists its names would hide the modules inside it."""
    found = pkgutil.walk_packages(uniarena.__path__, "uniarena.")
    return [
        "uniarena",
        *(module.name for module in found if not module.name.rpartition(".")[2].startswith("_")),
    ]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    shutil.rmtree(folder, ignore_errors=True)
    pdoc.render.configure(
        docformat="google", footer_text=f"UniArena {uniarena.__version__}", show_source=False
    )
    with warnings.catch_warnings():
        # Of generated __init__ methods, whose annotations are then shown as they are written.
        warnings.filterwarnings("ignore", "Error parsing type annotation", UserWarning)
        # Packages that do not list their names lead to their modules by themselves.
        warnings.filterwarnings("ignore", "The module specification .* adds a module", UserWarning)
        pdoc.pdoc(*modules(), output_directory=folder)
    print(f"wrote {folder / 'index.html'}: {len(list(folder.rglob('*.html')))} pages")


if __name__ == "__main__":
    main()
