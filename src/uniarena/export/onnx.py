"""ONNX export: one graph from raw observations to the environment's own action.

Normalisation, the policy network, the deterministic action of the head and the action map (rescale, clip, start) are
inside. The file is checked against Python before it is handed over.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from uniarena.batch import tree_leaves, tree_map, tree_paths, tree_unflatten

if TYPE_CHECKING:
    from uniarena.agent import Agent

TOLERANCE = 1e-5
"""Largest accepted difference of an action between ONNX and Python."""

log = logging.getLogger("uniarena")


class ExportError(RuntimeError):
    """The policy cannot be exported, or the exported file does not act like it."""


class _Acting(nn.Module):
    """Observation leaves `[N, …]` → action leaves `[N, …]`, as plain positional tensors."""

    def __init__(self, agent: Agent, like: Any) -> None:
        super().__init__()
        self.policy, self.action_map, self.like = agent.model.policy, agent.action_map, like

    def forward(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        obs = tree_unflatten(self.like, leaves)
        params, _ = self.policy.params(obs)
        action = self.policy.head.mode(params, self.policy.mask(obs))
        return tuple(tree_leaves(self.action_map(action)))


def export_onnx(agent: Agent, path: Path) -> Path:
    """Write the deterministic policy of `agent` to `path` and check it on random observations.

    Inputs are named by their path in the observation space (`obs` for a plain one), outputs `action`, `action.0`, …;
    the     first dimension is free.

    Raises:
        ExportError: the packages are missing, the policy has memory, or the file acts differently.
    """
    missing = [
        name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise ExportError(
            f'ONNX export needs {", ".join(missing)}; install them with: pip install "uniarena[onnx]"'
        )
    if agent.actor.initial_state(1) is not None:
        raise ExportError("policies with memory cannot be exported to ONNX yet; export an MLP or CNN policy.")
    obs = _examples(agent, 3)
    leaves = [leaf for _, leaf in tree_paths(obs)]
    module = _Acting(agent, obs).eval()
    outputs = len(module(*leaves))
    names = [key or "obs" for key, _ in tree_paths(obs)]
    path.parent.mkdir(parents=True, exist_ok=True)
    batch = torch.export.Dim("batch", min=1, max=2**20)
    with _quiet_exporter():
        program = torch.onnx.export(
            module,
            tuple(leaves),
            dynamo=True,
            input_names=names,
            output_names=["action"] if outputs == 1 else [f"action.{i}" for i in range(outputs)],
            dynamic_shapes=(tuple({0: batch} for _ in leaves),),
            verbose=False,
        )
        if program is None:
            raise ExportError("torch.onnx.export gave no program.")
        program.save(str(path), external_data=False)
    _check(agent, path, names)
    return path


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep back what torch's exporter says of its own parts (missing torchvision, deprecations inside torch)."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


def _examples(agent: Agent, count: int) -> Any:
    """Random observations of the agent's space, stacked `[count, …]`, in network dtypes."""
    space = agent.observation_space
    space.seed(0)
    samples = [space.sample() for _ in range(count)]
    stacked = tree_map(lambda *parts: torch.as_tensor(np.stack(parts)), *samples)
    return tree_map(lambda leaf: leaf.float() if leaf.dtype == torch.float64 else leaf, stacked)


def _check(agent: Agent, path: Path, names: list[str]) -> None:
    """Compare ONNX and Python on observations of another batch size."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    obs = _examples(agent, 7)
    inputs = {name: leaf.numpy() for name, leaf in zip(names, tree_leaves(obs), strict=True)}
    found = session.run(None, inputs)
    expected = tree_leaves(agent.act(obs, deterministic=True))
    worst = max(
        float(np.abs(np.asarray(a, np.float64) - b).max()) for a, b in zip(expected, found, strict=True)
    )
    if not worst <= TOLERANCE:
        path.unlink()
        raise ExportError(
            f"the exported policy differs from Python by {worst:.2g} (allowed {TOLERANCE:g}); no file was kept."
        )
    log.info("exported %s; it differs from Python by at most %.1g", path, worst)
