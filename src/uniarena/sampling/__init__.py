"""Sampling: the only seam between stepping environments and learning."""

from uniarena.sampling.ahead import Ahead
from uniarena.sampling.build import Sampler, build_sampler
from uniarena.sampling.empty import EmptySampler
from uniarena.sampling.episodes import Episode, EpisodeTracker
from uniarena.sampling.local import LocalSampler
from uniarena.sampling.pipelined import PipelinedSampler, ProducerError

__all__ = [
    "Ahead",
    "EmptySampler",
    "Episode",
    "EpisodeTracker",
    "LocalSampler",
    "PipelinedSampler",
    "ProducerError",
    "Sampler",
    "build_sampler",
]
