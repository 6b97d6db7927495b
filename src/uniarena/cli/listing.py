"""What `uniarena list` shows: everything that a config can name."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from uniarena import registry
from uniarena.config import recipes

# Word in the module of a gymnasium environment → what it needs and the extra that brings it.
_FAMILIES = {
    "classic_control": ("classic control", "", ""),
    "box2d": ("Box2D", "Box2D", "box2d"),
    "mujoco": ("MuJoCo", "mujoco", "mujoco"),
    "toy_text": ("toy text", "", ""),
}
_FORMS = (
    ("ALE/Pong-v5", "ale_py", "atari"),
    ("MinAtar/Breakout-v1", "minatar", "minatar"),
    ("MiniGrid-Empty-8x8-v0", "minigrid", "minigrid"),
    ("dm_control/cartpole-swingup", "dm_control", "dm-control"),
    ("metaworld/reach-v3", "metaworld", "metaworld"),
    ("procgen/coinrun", "envpool", "envpool"),
    ("envpool/Pong-v5", "envpool", "envpool"),
    ("gymnax/CartPole-v1", "gymnax", "gymnax"),
    ("gym/CartPole-v1", "gym", "legacy-gym"),
)


def entries(kind: str) -> list[str]:
    """The names of one table of `TABLES`, sorted."""
    return TABLES[kind]()


def table(word: str) -> str | None:
    """The table that a word means: `learners`, also `learner`; None where there is none."""
    word = word.lower().replace("environment", "env").replace("_", "-")
    for name in TABLES:
        if word in (name, name.removesuffix("s"), name.removesuffix("es")):
            return name
    return None


def nearest(word: str) -> str:
    """What to say of a word that means no table."""
    near = difflib.get_close_matches(word, TABLES, n=1)
    known = f"there are {', '.join(TABLES)}"
    return f"there is no list {word!r}; {known}" + (f". Did you mean {near[0]}?" if near else "")


def overview() -> str:
    """All tables as text, one a line; environments are left to their own list, since Gymnasium must be asked."""
    lines = {name: ", ".join(entries(name)) for name in TABLES if name != "envs"}
    lines["envs"] = "uniarena list envs"
    tables = [f"{name}: {lines[name] or '(none)'}" for name in TABLES]
    return "\n".join([*tables, "uniarena list KIND says what each is, such as: uniarena list learners"])


def text(kind: str) -> str:
    """One table as text, one name a line, with what it is."""
    if kind == "envs":
        return _environments_as_text()
    if kind == "recipes":
        return _aligned(
            {n: _first_comment(path.read_text(encoding="utf-8")) for n, path in recipes().items()}
        )
    single = next(name for name in registry.KINDS if _plural(name) == kind)
    return _aligned({name: described(single, name) for name in entries(kind)})


def described(kind: str, name: str) -> str:
    """What a component is: the first sentence of its docstring; of a preset also where it comes from."""
    try:
        found = registry.lookup(kind, name)
    except registry.RegistryError as error:
        return str(error.args[0])
    source = getattr(found, "source", "") if hasattr(found, "learner") else ""  # of a preset
    if source:
        own = isinstance(found.Config, type) and found.Config is not found.learner.Config
        told = _first_sentence(found.Config if own else found.learner)
        defaults = getattr(found.Config, "defaults", {})
        given = [f"{key}: {_written(v)}" for key, v in defaults.items() if isinstance(v, _SCALARS)]
        whole = f"{told}; {', '.join(given)}" if given else told
        return f"{textwrap.shorten(whole, SENTENCE, placeholder=' …')} ({source})"
    return _first_sentence(found)


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _first_sentence(component: Any) -> str:
    paragraph = " ".join(str(getattr(component, "__doc__", None) or "").strip().partition("\n\n")[0].split())
    end = re.search(r"(?<!\bal)\.(?=\s|$)", paragraph)
    return textwrap.shorten(paragraph[: end.start()] if end else paragraph, SENTENCE, placeholder=" …")


def _aligned(lines: Mapping[str, str]) -> str:
    width = max(map(len, lines), default=0)
    return "\n".join(f"{name:{width}}  {line}".rstrip() for name, line in lines.items())


def _first_comment(content: str) -> str:
    first = content.partition("\n")[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def _gymnasium() -> dict[str, str]:
    """Newest ids of Gymnasium's own environments → their family."""
    import gymnasium

    newest: dict[str, tuple[int, str, str]] = {}
    for env_id, spec in gymnasium.registry.items():
        module = str(spec.entry_point).partition(":")[0].split(".")
        family = next((family for family in _FAMILIES if family in module), None)
        if family is not None and spec.namespace is None:
            newest[spec.name] = max(newest.get(spec.name, (-1, "", "")), (spec.version or 0, env_id, family))
    return {env_id: family for _, env_id, family in newest.values()}


def _environments() -> list[str]:
    return sorted({*registry.names("env"), *_gymnasium()})


def _environments_as_text() -> str:
    known, lines = _gymnasium(), []
    if own := registry.names("env"):
        lines.append(f"registered: {', '.join(own)}")
    for family, (title, module, extra) in _FAMILIES.items():
        ids = ", ".join(env_id for env_id, of in known.items() if of == family)
        lines.append(f"{title}{_needs(module, extra)}: {ids}")
    lines.append("and ids such as")
    lines += [f"  {env_id}{_needs(module, extra)}" for env_id, module, extra in _FORMS]
    lines.append("  package.module:Name, your own class or function")
    return "\n".join(lines)


def _needs(module: str, extra: str) -> str:
    return f' (pip install "uniarena[{extra}]")' if module and find_spec(module) is None else ""


def _names(kind: str) -> Callable[[], list[str]]:
    return _environments if kind == "env" else lambda: registry.names(kind)


def _plural(kind: str) -> str:
    return {"bonus": "bonuses", "memory": "memories"}.get(kind, f"{kind}s")


_SCALARS = (str, bool, int, float)
SENTENCE = 120
"""Longest sentence, in letters; the rest of a longer one is left out."""
TABLES: dict[str, Callable[[], list[str]]] = {
    **{_plural(kind): _names(kind) for kind in registry.KINDS},
    "recipes": lambda: sorted(recipes()),
}
"""Name of a table → what gives its entries."""
