"""Keys whose meaning depends on whether a run learns from data: its clock is updates then."""

from __future__ import annotations

from uniarena.config.errors import Faults
from uniarena.config.schema import UPDATES
from uniarena.config.section import Section, find


def check_clock(tree: Section, faults: Faults) -> list[str]:
    """Refuse lengths and intervals in the unit that the run does not have.

    Args:
        tree: the merged canonical config.
        faults: takes what is wrong.

    Returns:
        what the user should know: a default that decides the run's length.
    """

    def refuse(path: str, said: str, hint: str) -> None:
        value, where = find(tree, path)
        if value is not None:
            faults.add(said, path, where, hint)

    if tree.get("data") is None:
        said = "this is the length of a run that learns from data, and none is given"
        refuse("training.total_updates", said, "write training.total_timesteps, or add `data: {path: …}`")
        return []
    said = "the run learns from data and steps no environment: its clock is updates"
    refuse("training.total_timesteps", said, "write training.total_updates")
    for name in ("log", "save", "eval"):
        hint = f"write training.{name}_interval, which counts updates here"
        refuse(f"training.{name}_every_env_steps", said, hint)
    said = "the buffer of a run that learns from data is made by the section data"
    refuse("agent.buffer", said, "move its keys to data, or remove one of the two")
    if find(tree, "training.total_updates")[0] is not None:
        return []
    return [f"training.total_updates is not given; the default is {UPDATES:,} updates"]
