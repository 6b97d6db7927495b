"""What the networks say of the newest rows: one pass without gradients, in evaluation mode, that draws nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from uniarena.batch import Tree
from uniarena.nets.inference import eval_mode
from uniarena.ops.health import bias, realised, td_errors
from uniarena.ops.policy_gradient import approx_kl, clamp_log_ratio
from uniarena.trainer.health.experience import of_actions
from uniarena.trainer.health.networks import Units
from uniarena.trainer.health.sample import Newest, flat
from uniarena.values.actor_q_model import ActorQModel
from uniarena.values.q_model import QModel


@torch.no_grad()
def of_networks(agent: Any, newest: Newest, metrics: Mapping[str, float]) -> dict[str, float]:
    """Values beside realised returns, TD errors, how far the policy moved, its entropy, and hidden units.

    Args:
        metrics: of the iteration: the temperature and the entropy, which soft values hold.
    """
    model, rows, units = agent.model, newest.rows, Units()
    if not newest.on_policy and model.initial_state(1) is not None:
        return {}  # replayed rows do not hold the state that they were seen with
    with eval_mode(model), units.watching(model):
        dist, value = outputs(model, newest)
    found = units.figures()
    if value is not None:
        found |= _of_values(agent, newest, value.reshape(rows.shape), metrics)
    if newest.on_policy and dist is not None and "log_prob" in rows:
        found |= _of_ratios(dist.log_prob(_like_output(rows.action, newest)), newest)
    space = agent.action_map.policy_space
    if dist is not None and not newest.on_policy and isinstance(space, spaces.Box):
        mode = dist.mode().reshape(rows.action.shape)  # without the explorer's noise, which would hide it
        found |= of_actions(mode, rows.valid, space)
    most = _largest_entropy(space)
    if dist is not None and most > 0.0 and not isinstance(model, QModel):
        entropy = dist.entropy().reshape(rows.shape)[rows.valid]
        found["health/entropy_share"] = float(entropy.mean()) / most
    return found


def outputs(model: Any, newest: Newest) -> tuple[Any, Tensor | None]:
    """The distribution, and the value of every row (Q of its action off-policy), flat or `[T, B]`."""
    rows = newest.rows
    if newest.on_policy:
        out = model(_like_output(rows.obs, newest), *_memory(newest))
        return out.dist, out.value
    return of_pairs(model, flat(rows.obs), flat(rows.action))


def of_pairs(model: Any, obs: Tree, action: Tree) -> tuple[Any, Tensor | None]:
    """The distribution, where it is more than the greedy one, and Q `[N]` of actions in places `[N, …]`; None: no Q."""
    if isinstance(model, QModel):
        q = model.q(obs)
        return None, q.gather(-1, action.long().reshape(-1, 1)).squeeze(-1)
    if isinstance(model, ActorQModel):
        q = model.value(obs, action)  # [E, N], of quantiles or of all discrete actions [E, N, K]
        dist = model(obs).dist
        if model.scale is None:
            q = q.gather(-1, action.long().reshape(1, -1, 1).expand(len(q), -1, 1)).squeeze(-1)
        elif q.dim() == 3:
            q = q.mean(-1)
        return dist, q.mean(0)
    return None, None


def _memory(newest: Newest) -> tuple[Any, ...]:
    """State before the first row, and where it begins anew, of policies with memory."""
    return () if newest.state is None else (newest.state, newest.rows.is_first)


def _like_output(tree: Any, newest: Newest) -> Any:
    """`[T, B, …]` where the model runs over time, flat otherwise."""
    return flat(tree) if newest.state is None else tree


def _of_values(agent: Any, newest: Newest, value: Tensor, metrics: Mapping[str, float]) -> dict[str, float]:
    rows, gamma = newest.rows, getattr(agent.learner.cfg, "gamma", None)
    if gamma is None or (agent.bonuses and "bonus" not in rows):
        return {}  # what the critic is paid in bonuses is known at updates alone
    reward = rows.reward if agent.reward_scaler is None else agent.reward_scaler.scale(rows.reward)
    reward = reward + rows.bonus if "bonus" in rows else reward
    arrays = [_numpy(x) for x in (reward, value, rows.terminated, rows.ended, rows.valid)]
    paid, predicted, terminated, ended, valid = arrays
    if not newest.on_policy:  # soft values hold the entropy of every later step
        soft = metrics.get("alpha", 0.0) * metrics.get("entropy", 0.0)
        paid = paid + gamma * np.where(terminated, 0.0, soft if math.isfinite(soft) else 0.0)
    returns, left = realised(paid, predicted, terminated, ended, gamma)
    mean = float(predicted[:-1][valid[:-1]].mean()) if valid[:-1].any() else math.nan
    found = {"health/value_mean": mean}
    over = bias(predicted[:-1], returns, left, valid[:-1])
    if not math.isnan(over):
        found |= {"health/value_bias": over, "health/return_realised": mean - over}
    errors = td_errors(paid, predicted, terminated, ended, gamma)[valid[:-1]]
    if errors.size:
        found["health/td_error_median"], found["health/td_error_p95"] = map(
            float, np.quantile(errors, (0.5, 0.95))
        )
    return {name: number for name, number in found.items() if math.isfinite(number)}


def _of_ratios(log_prob: Tensor, newest: Newest) -> dict[str, float]:
    rows = newest.rows
    log_ratio, _ = clamp_log_ratio(log_prob.reshape(rows.shape), rows.log_prob)
    log_ratio = log_ratio[rows.valid]
    if not bool(log_ratio.isfinite().all()):
        return {}
    return {
        "health/ratio_min": float(log_ratio.min().exp()),
        "health/ratio_max": float(log_ratio.max().exp()),
        "health/kl_update": float(approx_kl(log_ratio).mean()),
    }


def _largest_entropy(space: Any) -> float:
    """In nats; 0 where actions are not discrete."""
    if isinstance(space, spaces.Discrete):
        return math.log(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return float(np.log(space.nvec.astype(float)).sum())
    if isinstance(space, spaces.MultiBinary):
        return float(np.prod(space.shape)) * math.log(2.0)
    return 0.0


def _numpy(x: Tensor) -> np.ndarray:
    array: np.ndarray = x.detach().cpu().numpy()
    return array.astype(np.float64) if array.dtype.kind == "f" else array
