"""The size budgets of the sources: prints what is over budget and exits with 1, else with 0.

A reader should hold a file, a function or a class in the head at once. There are no exceptions by file: what
is over budget is split or said more simply.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES = 400
LEARNER_FILE_LINES = 150
FUNCTION_LINES = 60
PARAMETERS = 8
PUBLIC_METHODS = 10
# Drawers that anything fits into, so that nothing is found in them.
NAMELESS = {
    "util",
    "utils",
    "common",
    "misc",
    "helper",
    "helpers",
    "manager",
    "managers",
    "handler",
    "handlers",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parameters(function: Function, method: bool) -> int:
    """Number of named parameters, without self or cls."""
    args = function.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return len(names) - (method and names[:1] in (["self"], ["cls"]))


def is_property(function: Function) -> bool:
    """Whether it reads as an attribute: @property, @cached_property, @x.setter."""
    marks = {"property", "cached_property", "setter", "deleter"}
    return any(marks & {getattr(d, "id", None), getattr(d, "attr", None)} for d in function.decorator_list)


def is_constructor(function: Function) -> bool:
    """Whether it is called on the class rather than on an object."""
    return any(getattr(d, "id", None) in ("staticmethod", "classmethod") for d in function.decorator_list)


def public_methods(node: ast.ClassDef) -> set[str]:
    """Names of the public methods that the class body defines, overrides included; properties and alternate
    constructors (static and class methods) not.
    """
    return {
        item.name
        for item in node.body
        if isinstance(item, Function)
        and not item.name.startswith("_")
        and not is_property(item)
        and not is_constructor(item)
    }


def over_budget_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, fault) of each function and class that is over budget."""
    methods = {id(f) for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in c.body}
    for node in ast.walk(tree):
        if isinstance(node, Function):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield node.lineno, f"{node.name}: {length} lines (budget {FUNCTION_LINES})"
            count = parameters(node, id(node) in methods)
            if count > PARAMETERS:
                yield node.lineno, f"{node.name}: {count} parameters (budget {PARAMETERS})"
        elif isinstance(node, ast.ClassDef):
            names = public_methods(node)
            if len(names) > PUBLIC_METHODS:
                listed = ", ".join(sorted(names))
                yield (
                    node.lineno,
                    f"{node.name}: {len(names)} public methods (budget {PUBLIC_METHODS}): {listed}",
                )


def over_budget(package: Path) -> list[str]:
    """One line for each thing in the package that is over budget or has a name that says nothing."""
    rows = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        text = path.read_text(encoding="utf-8")
        lines, budget = text.count("\n"), FILE_LINES
        if inside.parts[0] == "learners":
            budget = LEARNER_FILE_LINES
        if lines > budget:
            rows.append(f"{shown}: {lines} lines (budget {budget})")
        if NAMELESS & {path.stem.strip("_"), *inside.parent.parts}:
            rows.append(f"{shown}: the name says nothing; name it after what it holds")
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            rows.append(f"{shown}:{error.lineno} does not parse: {error.msg}")
            continue
        rows += [f"{shown}:{line} {fault}" for line, fault in over_budget_in(tree)]
    return rows


def main() -> int:
    rows = over_budget(ROOT / "src" / "uniarena")
    print("\n".join(rows) if rows else "budgets: all kept")
    return 1 if rows else 0


if __name__ == "__main__":
    sys.exit(main())
