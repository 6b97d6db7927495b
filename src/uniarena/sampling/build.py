"""The sampler that a config asks for."""

from __future__ import annotations

from uniarena.agent import Agent
from uniarena.config import ConfigError, SamplingConfig
from uniarena.envs.protocol import Env
from uniarena.sampling.empty import EmptySampler
from uniarena.sampling.local import LocalSampler
from uniarena.sampling.pipelined import PipelinedSampler

Sampler = LocalSampler | PipelinedSampler | EmptySampler


def build_sampler(agent: Agent, env: Env, cfg: SamplingConfig) -> Sampler:
    """A sampler for an agent.

    Args:
        env: what it steps, or what the producer makes another one like.

    Raises:
        ConfigError: sampling that lags, for a run from data or a learner that takes the policy before its update for
            what acted; or an environment that no other process can make.
        ProducerError: the producer could not make or reset its environment.
    """
    streams, records, device = agent.streams, agent.learner.records, agent.device
    if getattr(agent.buffer, "fixed", False):
        if cfg.type != "local":
            raise ConfigError(
                "a run that learns from data steps no environment, so nothing can be stepped beside it",
                "sampling.type",
                hint="leave `sampling` out, or `data`",
            )
        return EmptySampler(env, streams, records, device)
    if cfg.type == "local":
        return LocalSampler(env, streams, records, device)
    if getattr(agent.learner.cfg, "ratio", None) == "atom":
        raise ConfigError(
            "learner.ratio=atom compares with the policy before the update, and with pipelined sampling an earlier one "
            "acted",
            "sampling.type",
            hint="set learner.ratio=joint, or sampling.type=local",
        )
    return PipelinedSampler(env, streams, records, device, cfg)
