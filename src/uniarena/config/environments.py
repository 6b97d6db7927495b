"""Environment ids: old ones become today's with a notice, multi-agent ones are recognised."""

from __future__ import annotations

import re

from uniarena.config.errors import Location

_OTHER_RULES = "the newer version differs in details, so results do not compare with the old one's"

# Name → oldest version to replace, today's version, what changes for the user.
_CURRENT: dict[str, tuple[int, str]] = {
    "CartPole": (1, "episodes end after 500 steps instead of 200, so returns go up to 500"),
    "Pendulum": (1, ""),
    "Acrobot": (1, ""),
    "LunarLander": (3, _OTHER_RULES),
    "LunarLanderContinuous": (3, _OTHER_RULES),
    "BipedalWalker": (3, _OTHER_RULES),
    "BipedalWalkerHardcore": (3, _OTHER_RULES),
    "CarRacing": (3, _OTHER_RULES),
    "Taxi": (4, _OTHER_RULES),
    "CliffWalking": (1, _OTHER_RULES),
    "FrozenLake": (1, ""),
    "FrozenLake8x8": (1, ""),
    "Blackjack": (1, ""),
    **dict.fromkeys(
        (
            "Ant",
            "HalfCheetah",
            "Hopper",
            "Humanoid",
            "HumanoidStandup",
            "InvertedDoublePendulum",
            "InvertedPendulum",
            "Pusher",
            "Reacher",
            "Swimmer",
            "Walker2d",
        ),
        (5, _OTHER_RULES),
    ),
}

_MULTI_AGENT = re.compile(
    r"^(pettingzoo|mpe2?|magent2?|smac|smacv2|overcooked|vmas|meltingpot)[./:]|^[a-z0-9_]+_v\d+$", re.I
)


def modern_id(env_id: str) -> tuple[str, str] | None:
    """Today's id for an old one and the notice to give, or None where the id can stay."""
    match = re.fullmatch(r"([A-Za-z0-9]+)-v(\d+)", env_id)
    current = _CURRENT.get(match[1]) if match else None
    if match is None or current is None or int(match[2]) >= current[0]:
        return None
    version, change = current
    return f"{match[1]}-v{version}", change


def renamed(env_id: str, location: Location | None) -> tuple[str, str | None]:
    """The id to use and, where it is not the given one, the notice for the user."""
    found = modern_id(env_id)
    if found is None:
        return env_id, None
    new, change = found
    change, place = f"; {change}" if change else "", f" ({location})" if location else ""
    return (
        new,
        f"environment.id: {env_id} is an old id; {new} is used in its place{change}{place}",
    )


def is_multi_agent(env_id: str) -> bool:
    """Whether an id names an environment of several agents (PettingZoo, MPE and kin)."""
    return bool(_MULTI_AGENT.search(env_id))
