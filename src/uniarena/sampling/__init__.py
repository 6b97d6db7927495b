"""Sampling: the only seam between stepping environments and learning."""

from uniarena.sampling.empty import EmptySampler
from uniarena.sampling.episodes import Episode, EpisodeTracker
from uniarena.sampling.local import LocalSampler

__all__ = ["EmptySampler", "Episode", "EpisodeTracker", "LocalSampler"]
