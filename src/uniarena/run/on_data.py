"""Evaluate what was trained on data, without an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uniarena.agent import Agent
from uniarena.buffers.dataset import DatasetConfig
from uniarena.config import parse
from uniarena.learners.offline.fitted_q import FittedQConfig
from uniarena.run.saved import locate
from uniarena.sampling.estimates import OnData
from uniarena.sampling.on_data import METHODS, data_for
from uniarena.sampling.on_data import evaluate_on_data as of_agent


def evaluate_on_data(
    run: str | Path,
    data: str | Path | Mapping[str, Any],
    methods: Sequence[str] = METHODS,
    *,
    deterministic: bool = True,
    fqe: Mapping[str, Any] | None = None,
    seed: int = 0,
    trust: bool = False,
) -> OnData:
    """Estimate what the agent of a run, or of a checkpoint folder, would earn, from episodes that others played.

    Args:
        data: a file, or a section `data`. It has to be of the agent's spaces, as its training had it.
        methods: `fqe` (fitted-Q evaluation), `wis` (per-decision weighted importance sampling).
        deterministic: the mode of the policy; else samples of it.
        fqe: settings of fitted-Q evaluation.
        seed: of all draws.
        trust: allow the checkpoint to import the `module:Class` that it names.

    Raises:
        CheckpointError: nothing whole is there, or it needs `trust`.
        ConfigError: a policy with memory, an unknown method or setting.
        DataError: the data cannot be read, or is of other spaces.
    """
    agent = Agent.load(locate(run), trust=trust)
    section = data if isinstance(data, Mapping) else {"path": str(data)}
    buffer = data_for(agent, parse(DatasetConfig, section, "data"))
    cfg = parse(FittedQConfig, fqe or {}, "fqe")
    return of_agent(agent, buffer, methods, deterministic=deterministic, cfg=cfg, seed=seed)
