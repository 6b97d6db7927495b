"""The sources keep to their size budgets, and the check that says so sees what is over."""

from pathlib import Path

import pytest

from scripts import budgets


def test_every_budget_is_kept():
    assert budgets.over_budget(budgets.ROOT / "src" / "uniarena") == []


def long_function(lines: int) -> str:
    return "def f():\n" + "    x = 1\n" * (lines - 1)


def function_of(count: int, first: str = "") -> str:
    return f"def f({first}{', '.join(f'p{i}' for i in range(count))}): ...\n"


def in_class(body: str) -> str:
    return "class A:\n" + "".join(f"    {line}\n" for line in body.splitlines())


METHODS = "".join(f"def m{i}(self): ...\n" for i in range(10))


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("long.py", "x = 1\n" * 401, "401 lines (budget 400)"),
        ("learners/on_policy/long.py", "x = 1\n" * 151, "151 lines (budget 150)"),
        ("f.py", long_function(61), "f: 61 lines (budget 60)"),
        ("f.py", function_of(9), "f: 9 parameters (budget 8)"),
        ("f.py", in_class(function_of(9, "self, ")), "f: 9 parameters (budget 8)"),
        ("f.py", function_of(8, "*, self_, "), "f: 9 parameters (budget 8)"),
        ("f.py", in_class(METHODS + "def forward(self): ...\n"), "A: 11 public methods (budget 10)"),
        ("f.py", "x =\n", "1 does not parse"),
        ("utils.py", "", "name says nothing"),
        ("helpers/f.py", "", "name says nothing"),
        ("nets/_common.py", "", "name says nothing"),
    ],
)
def test_what_is_over_budget_is_named(tmp_path: Path, name: str, text: str, fault: str):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    [row] = budgets.over_budget(tmp_path)
    assert str(path) in row and fault in row


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("long.py", "x = 1\n" * 400),
        ("learners/short.py", "x = 1\n" * 150),
        ("f.py", long_function(60)),
        ("f.py", function_of(8)),
        ("f.py", in_class(function_of(8, "self, "))),
        ("f.py", in_class(METHODS + "@property\ndef p(self): ...\ndef _hidden(self): ...\n")),
    ],
)
def test_the_limit_itself_is_within_budget(tmp_path: Path, name: str, text: str):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert budgets.over_budget(tmp_path) == []
