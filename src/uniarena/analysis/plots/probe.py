"""What an agent does, and predicts, on episodes that are run for the picture."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from uniarena.batch import Batch, tree_map
from uniarena.config import ConfigError
from uniarena.explorers.actor import untouched
from uniarena.nets.inference import eval_mode
from uniarena.ops.health import realised
from uniarena.seeding import preserved_globals, seed_globals
from uniarena.trainer.health.prediction import outputs
from uniarena.trainer.health.sample import Newest
from uniarena.values.q_model import QModel

CELLS = 60
"""Rows and columns of a heat map."""
ACTIONS = 6
"""Most actions, or dimensions of one, that are shown."""


def walk(agent: Any, env: Any, steps: int, seed: int) -> Batch:
    """`steps` rows `[T, 1]` of the agent's own sampled behaviour in `env`, which has one column."""
    rows: list[dict[str, Any]] = []
    with preserved_globals(), untouched(agent.actor), torch.no_grad():
        seed_globals(seed)
        obs, state = env.reset(seed=seed), agent.actor.initial_state(1)
        first = torch.ones(1, dtype=torch.bool, device=agent.device)
        generator = torch.Generator(device=agent.device).manual_seed(seed)
        while len(rows) < steps:
            seen = tree_map(lambda leaf: _tensor(leaf).to(agent.device).clone(), obs)
            action, state = agent.actor.pick(seen, state, first, False, generator)
            picked = tree_map(lambda leaf: leaf.detach().clone(), action)
            step = env.step(
                tree_map(lambda leaf: leaf.to(env.device) if env.tensor else leaf.cpu().numpy(), action)
            )
            valid = [True] if step.valid is None else step.valid
            flags = [step.reward, step.terminated, step.truncated, valid]
            reward, terminated, truncated, valid = (_tensor(x).to(agent.device).clone() for x in flags)
            ended = terminated | truncated
            more = {"reward": reward.float(), "terminated": terminated, "ended": ended, "valid": valid}
            rows.append({"obs": seen, "action": picked, **more})
            obs, first = step.obs, _tensor(step.is_first).to(agent.device)
    return Batch.stack([Batch((1,), row) for row in rows])


class Worth(NamedTuple):
    """Predicted and realised discounted returns `[n]`, as the learner is paid."""

    predicted: np.ndarray
    realised: np.ndarray


@torch.no_grad()
def worth(agent: Any, rows: Batch) -> Worth | None:
    """What was predicted on a walk beside what followed, where at least half of that is rewards; None: nowhere."""
    gamma = getattr(agent.learner.cfg, "gamma", None)
    if gamma is None or agent.model.initial_state(1) is not None:
        return None
    with eval_mode(agent.model):
        value = outputs(agent.model, Newest(rows, type(agent.model).__name__ == "Model"))[1]
    if value is None:
        return None
    reward = rows.reward if agent.reward_scaler is None else agent.reward_scaler.scale(rows.reward)
    fields = (reward, value.reshape(rows.shape), rows.terminated, rows.ended, rows.valid)
    paid, predicted, terminated, ended, valid = (x.cpu().numpy() for x in fields)
    returns, left = realised(paid, predicted, terminated, ended, gamma)
    known = valid[:-1] & (left < 0.5)
    return Worth(predicted[:-1][known], returns[known]) if known.any() else None


class Map(NamedTuple):
    """What the policy does: `layers [K, rows, columns]` over two observation entries, or `[K, T]` over a walk.

    Attributes:
        names: `[K]` what each layer is.
        axes: names of the two entries, the horizontal one first; empty over a walk.
        extent: left, right, bottom, top.
    """

    layers: np.ndarray
    names: list[str]
    axes: tuple[str, ...] = ()
    extent: tuple[float, float, float, float] = (0.0, 1.0, 0.0, 1.0)


def policy_map(agent: Any, rows: Batch, dims: tuple[int, int] | None = None) -> Map | None:
    """Action probabilities, Q-values or means: over two entries of a flat observation, else over the walk.

    The other entries stand at their median. Without `dims` the two that vary most beside the rest are taken.

    Raises:
        ConfigError: `dims` names entries that are not there.
    """
    if agent.model.initial_state(1) is not None:
        return None
    obs = rows.obs
    flat = isinstance(obs, Tensor) and obs.dim() == 3 and obs.is_floating_point() and obs.shape[-1] > 1
    if not flat:
        answers, names = _answers(agent, tree_map(lambda leaf: leaf.flatten(0, 1), obs))
        return None if answers is None else Map(answers.T[:ACTIONS], names[:ACTIONS])
    seen = obs.flatten(0, 1)
    across, up = _chosen(seen, dims)
    (left, right), (bottom, top) = (_range(seen[:, k]) for k in (across, up))
    grid = seen.median(0).values.repeat(CELLS * CELLS, 1)
    y, x = torch.meshgrid(
        torch.linspace(bottom, top, CELLS), torch.linspace(left, right, CELLS), indexing="ij"
    )
    grid[:, across], grid[:, up] = x.flatten().to(grid), y.flatten().to(grid)
    answers, names = _answers(agent, grid)
    if answers is None:
        return None
    layers = answers.T[:ACTIONS].reshape(-1, CELLS, CELLS)
    axes = (f"observation {across}", f"observation {up}")
    return Map(layers, names[:ACTIONS], axes, (left, right, bottom, top))


@torch.no_grad()
def _answers(agent: Any, obs: Any) -> tuple[np.ndarray | None, list[str]]:
    """`[N, K]` numbers of the policy, and their names; None where actions are neither Discrete nor a Box."""
    model = agent.model
    with eval_mode(model):
        if isinstance(model, QModel):
            q = model.q(obs)
            return q.cpu().numpy(), [f"Q of action {k}" for k in range(q.shape[-1])]
        dist = model(obs).dist
        if hasattr(dist, "log_p"):
            p = dist.log_p.exp()
            return p.cpu().numpy(), [f"probability of action {k}" for k in range(p.shape[-1])]
        mode = dist.mode()
    if not isinstance(mode, Tensor) or not mode.is_floating_point():
        return None, []
    mode = mode.reshape(len(mode), -1)
    return mode.cpu().numpy(), [f"mean of action {k}" for k in range(mode.shape[-1])]


def _chosen(seen: Tensor, dims: tuple[int, int] | None) -> tuple[int, int]:
    width = seen.shape[-1]
    if dims is None:
        spread = seen.std(0) / (seen.abs().mean(0) + 1e-6)
        first, second = sorted(spread.topk(2).indices.tolist())
        return first, second
    if any(not 0 <= dim < width for dim in dims):
        raise ConfigError(f"got {dims[0]},{dims[1]}; the observation has entries 0 to {width - 1}", "dims")
    return dims


def _range(entry: Tensor) -> tuple[float, float]:
    low, high = (float(torch.quantile(entry.float(), share)) for share in (0.01, 0.99))
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def _tensor(x: Any) -> Tensor:
    tensor = torch.as_tensor(x)
    return tensor.float() if tensor.dtype == torch.float64 else tensor
