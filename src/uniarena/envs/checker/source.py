"""Which line of the user's own file a finding is about."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import textwrap
import traceback
from collections.abc import Iterator
from typing import Any

MAX_LINES = 3
MAX_LAYERS = 20


def return_lines(env: Any, method: str) -> str:
    """Where `method` returns, in the outermost class that the user wrote; its `def` where it never does."""
    found = _method(env, method)
    if found is None:
        return ""
    file, start, lines, tree = found
    numbers = [node.lineno for node in _own_nodes(tree.body[0]) if isinstance(node, ast.Return)]
    return _lines(file, start, lines, numbers or [tree.body[0].lineno])


def def_line(env: Any, method: str) -> str:
    """Where `method` is defined."""
    found = _method(env, method)
    return "" if found is None else _lines(*found[:3], [found[3].body[0].lineno])


def space_lines(env: Any, name: str) -> str:
    """Where the user's class (or a base of it) sets `observation_space` or `action_space`."""
    for cls in (cls for layer in _layers(env) for cls in type(layer).__mro__):
        found = None if _is_library(cls) else _source(cls)
        if found is None:
            continue
        numbers = [
            target.lineno
            for node in ast.walk(found[3])
            for target in _targets(node)
            if getattr(target, "attr", getattr(target, "id", None)) == name
            and isinstance(target.ctx, ast.Store)
        ]
        if numbers:
            return _lines(*found[:3], numbers)
    return ""


def class_line(env: Any) -> str:
    """Where the class of the innermost environment begins."""
    found = _source(type(_layers(env)[-1]))
    return "" if found is None else _lines(*found[:3], [found[3].body[0].lineno])


def raised_line(error: BaseException) -> str:
    """The innermost line of the traceback that lies in the user's code; empty where there is none."""
    own = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    skipped = (own, "<frozen", os.path.dirname(importlib.__file__))
    users = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(skipped) and "site-packages" not in frame.filename
    ]
    return f"{_short(users[-1].filename)}:{users[-1].lineno}: {users[-1].line}" if users else ""


Source = tuple[str, int, list[str], ast.Module]


def _layers(env: Any) -> list[Any]:
    """The environment and what it wraps, outermost first; of a vector of environments the first."""
    layers = [env]
    while len(layers) < MAX_LAYERS:
        fields = getattr(layers[-1], "__dict__", {})
        inner = (
            fields.get("env") if fields.get("env") is not None else next(iter(fields.get("envs") or ()), None)
        )
        if inner is None or callable(inner):
            break
        layers.append(inner)
    return layers


def _is_library(cls: type) -> bool:
    return cls.__module__.split(".")[0] in ("gymnasium", "gym", "uniarena", "builtins")


def _method(env: Any, name: str) -> Source | None:
    """The source of a method in the outermost class that is the user's, else in the innermost class."""
    layers = _layers(env)
    for layer in layers:
        for cls in type(layer).__mro__:
            if name in vars(cls):
                if not _is_library(cls):
                    return _source(vars(cls)[name])
                break
    return _source(getattr(type(layers[-1]), name, None))


def _source(thing: Any) -> Source | None:
    """(file, first line, source lines, syntax tree) of a class or function; None without source."""
    try:
        file = inspect.getsourcefile(thing) or ""
        lines, start = inspect.getsourcelines(thing)
        return file, start, lines, ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions defined inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield child
            yield from _own_nodes(child)


def _targets(node: ast.AST) -> list[Any]:
    if isinstance(node, ast.Assign):
        found = [
            part
            for target in node.targets
            for part in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
        return [target for target in found if isinstance(target, (ast.Attribute, ast.Name))]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, (ast.Attribute, ast.Name)):
        return [node.target]
    return []


def _lines(file: str, start: int, lines: list[str], numbers: list[int]) -> str:
    shown = [f"{_short(file)}:{start + n - 1}: {lines[n - 1].strip()}" for n in numbers[:MAX_LINES]]
    return "\n           ".join(shown)


def _short(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative
