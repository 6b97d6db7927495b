"""The pages of the documentation, taken apart: fenced blocks, code spans, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
READMES = [ROOT / "README.md", ROOT / "README.zh.md"]
PAGES = [*READMES, *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its language, its text, the line that it begins at, and the file that its first line names."""

    language: str
    text: str
    line: int
    file: str


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page in these languages, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        named = re.match(r"# ([\w.-]+\.(?:py|yaml))\n", match[2])
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(match[1], match[2], line, named[1] if named else ""))
    return [block for block in found if block.language in languages]


def spans(page: Path) -> list[str]:
    """The code spans of a page outside of its blocks."""
    return re.findall(r"`([^`\n]+)`", _FENCE.sub("", page.read_text(encoding="utf-8")))


def rows(page: Path, heading: str = "") -> Iterator[list[str]]:
    """The rows of the tables below a heading (of the whole page without one), without their head lines, as cells."""
    text = page.read_text(encoding="utf-8")
    if heading:
        text = next(p for p in re.split(r"^#+ ", text, flags=re.MULTILINE) if p.startswith(heading))
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not _is_rule(line) and not _is_rule(following):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def _is_rule(line: str) -> bool:
    return line.startswith("|") and set(line) <= set("| :-")


def codes(cell: str) -> list[str]:
    """The code spans in a cell of a table."""
    return re.findall(r"`([^`]+)`", cell)
