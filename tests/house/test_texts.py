"""The project's texts: links lead somewhere, and nothing names a package host or a folder of some machine."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
HTML_LINK = re.compile(r"""(?:src|href)=["']([^"']+)["']""")
# Spelt without the dot, so that this list does not name what it forbids.
HOSTS = (
    "pypi",
    "pythonhosted",
    "npmjs",
    "npmmirror",
    "anaconda",
    "conda-forge",
    "download.pytorch",
    "deb.debian",
)
HOST = re.compile(rf"\b(?:{'|'.join(map(re.escape, HOSTS))})\.(?:org|com|io|net|co|cn)\b", re.IGNORECASE)
MACHINE = re.compile(r"(?<![\w.~-])/(?:home|root|Users|work|opt)/\w")


def texts() -> list[Path]:
    """Every text file that is, or would be, under version control."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
            "\0"
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git working tree")
    paths = [ROOT / name for name in names if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:8192]]


def pages() -> list[Path]:
    return [path for path in texts() if path.suffix == ".md"]


def prose(page: Path) -> str:
    """A page without its code blocks and code spans."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda span: span[0] if "](" in span[0] else "`", text)


def anchors(page: Path) -> set[str]:
    """The names that a page's headings can be linked by, as forges make them."""
    heads = re.findall(r"^#{1,6}\s+(.*?)\s*#*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
    return slugs | set(re.findall(r"""<a (?:id|name)=["']([^"']+)["']""", page.read_text(encoding="utf-8")))


def broken_links(page: Path) -> Iterator[str]:
    text = prose(page)
    for target in LINK.findall(text) + HTML_LINK.findall(text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or not file.is_relative_to(ROOT):
            yield f"{page.relative_to(ROOT)}: {target}: no such file in the project"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"{page.relative_to(ROOT)}: {target}: no such heading"


def matches(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def test_every_relative_link_leads_to_a_file_and_a_heading():
    assert [fault for page in pages() for fault in broken_links(page)] == []


def test_no_text_names_the_host_of_a_package_registry():
    assert matches(HOST) == []


def test_no_text_names_a_folder_of_some_machine():
    assert matches(MACHINE) == []


def test_every_page_of_the_docs_is_reached_from_the_readme():
    reached, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = {t.partition("#")[0] for t in LINK.findall(prose(page)) if "://" not in t}
        files = [(page.parent / target).resolve() for target in targets if target]
        queue += [f for f in files if f.suffix == ".md" and f.is_file()]
    docs = {page for page in pages() if page.is_relative_to(ROOT / "docs")}
    assert sorted(str(page.relative_to(ROOT)) for page in docs - reached) == []
