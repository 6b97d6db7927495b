"""Score: what gymnasium's `RecordEpisodeStatistics` inside of an environment counted, whoever ends episodes."""

from __future__ import annotations

from typing import Any

from gymnasium.wrappers import RecordEpisodeStatistics

from uniarena.envs.column import layers
from uniarena.envs.info import GOES_ON, RETURN


class Score:
    """Games that ended, as the statistics saw them: also those that end while a wrapper steps inside of its reset.

    Args:
        env: a single environment.
        seen: games that were reported; None: all of those so far.

    Attributes:
        seen: as given, and moved on.
    """

    def __init__(self, env: Any, seen: int | None = None) -> None:
        found = (layer for layer in layers(env) if isinstance(layer, RecordEpisodeStatistics))
        self._layer, self.seen = next(found, None), seen or 0
        if seen is None:
            self.sync()

    def sync(self) -> None:
        """Games that ended up to now were reported."""
        self.seen = 0 if self._layer is None else self._layer.episode_count

    def at_end(self) -> dict[str, float]:
        """What there is to say where an episode ended: the return of the game, or that it goes on."""
        if self._layer is None:
            return {}
        return self.ended() or {GOES_ON: 1.0}

    def ended(self) -> dict[str, float]:
        """The return of a game that ended since the last question."""
        if self._layer is None or self._layer.episode_count == self.seen:
            return {}
        self.sync()
        return {RETURN: float(self._layer.return_queue[-1]), GOES_ON: 0.0}
