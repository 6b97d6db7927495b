"""The learners with the framework's own networks: every kind of action, and state through a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from uniarena import checkpoint
from uniarena.batch import Batch, Rollout, Tree, tree_map
from uniarena.explorers.bonuses.rnd import RND, RNDConfig
from uniarena.learners.on_policy.policy_gradient import PolicyGradient
from uniarena.learners.on_policy.presets import A2C, APPO, IMPALA, PPO
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.optim import Minimize
from uniarena.seeding import Streams
from uniarena.values.model import Model, build_model

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)

ACTIONS: dict[str, gym.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "huge": spaces.Box(-1.0, 1.0, (9000,), np.float32),
    "hybrid": spaces.Dict({"kind": spaces.Discrete(2), "force": spaces.Box(-1.0, 1.0, (2,), np.float32)}),
}


def build(
    action: gym.Space[Any], preset: Any = PPO, seed: int = 0, **fields: Any
) -> tuple[PolicyGradient, Model]:
    streams = Streams(seed)
    model = build_model(OBS, action, {"hidden_sizes": [16]}, {}, ObservationNormalizer(OBS), streams)
    cfg = preset.Config(**fields)
    return preset(model, cfg, Minimize(cfg.max_grad_norm), streams.torch("minibatch")), model


def experience(model: Model, steps: int, columns: int, seed: int, distance: bool = False) -> Rollout:
    """Random observations, truncated every 7 rows, acted on by the model; some random reward."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(steps + 1, columns, 3, generator=generator)
    with torch.no_grad():
        flat = model(obs[:-1].flatten(0, 1))
        sample: Tree = flat.dist.sample(generator)
        log_prob = flat.dist.log_prob(sample)
    action = tree_map(lambda leaf: leaf.unflatten(0, (steps, columns)), sample)
    first = (torch.arange(steps + 1) % 7 == 0)[:, None].expand(-1, columns)
    t, b = first[1:].nonzero().unbind(1)
    rows = Batch(
        (steps, columns),
        obs=obs[:-1],
        action=action,
        log_prob=log_prob.unflatten(0, (steps, columns)),
        reward=torch.randn(steps, columns, generator=generator),
        terminated=torch.zeros(steps, columns, dtype=torch.bool),
        truncated=first[1:],
        is_first=first[:-1],
        valid=torch.ones(steps, columns, dtype=torch.bool),
    )
    ended = Batch((len(t),), t=t, b=b, obs=torch.randn(len(t), 3, generator=generator))
    return Rollout(
        rows, Batch((columns,), is_first=first[0]), Batch((columns,), obs=obs[-1], is_first=first[-1]), ended
    )


@pytest.mark.parametrize("ratio", ["joint", "atom"])
@pytest.mark.parametrize("name", ACTIONS)
def test_one_update_for_every_kind_of_action(name: str, ratio: str) -> None:
    learner, model = build(ACTIONS[name], ratio=ratio, batch_size=16, n_epochs=2)
    rollout = experience(model, 16, 2, seed=1)
    rows, _ = learner.targets(rollout)
    (whole,) = rows.select_valid().minibatches(32, 1, torch.Generator())
    before = learner.loss(whole)[1]
    assert before["kl"].abs().item() < 1e-4 and before["clip_fraction"].item() == 0.0
    parameters = {key: p.detach().clone() for key, p in model.named_parameters()}
    metrics = learner.update(rollout).metrics
    assert all(bool(value.isfinite()) for value in metrics.values())
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert all(not torch.equal(parameters[key], p) for key, p in model.named_parameters())


@pytest.mark.parametrize("preset", [PPO, A2C, IMPALA, APPO], ids=["ppo", "a2c", "impala", "appo"])
def test_learner_and_bonus_continue_bit_for_bit_through_a_file(preset: Any, tmp_path: Path) -> None:
    def parts(seed: int) -> tuple[PolicyGradient, Model, RND]:
        learner, model = build(ACTIONS["box"], preset, seed)
        return learner, model, RND(OBS, OBS, RNDConfig(feature_dim=8), torch.Generator().manual_seed(seed))

    def run(learner: PolicyGradient, model: Model, bonus: RND, first: int, last: int) -> None:
        for k in range(first, last):
            rollout = experience(model, 10, 3, seed=k)
            rows = rollout.rows
            learner.set_progress(k / 6)
            paid = rows.replace(reward=rows.reward + bonus.bonus(rollout))
            learner.update(Rollout(paid, rollout.start, rollout.last, rollout.ended))
            bonus.learn(rollout)

    straight = parts(0)
    run(*straight, 0, 6)
    broken = parts(0)
    run(*broken, 0, 3)
    checkpoint.save(tmp_path / "3", {"learner": broken[0].state_dict(), "bonus": broken[2].state_dict()}, {})
    state, _ = checkpoint.load(tmp_path / "3")
    fresh = parts(1)
    fresh[0].load_state_dict(state["learner"])
    fresh[2].load_state_dict(state["bonus"])
    run(*fresh, 3, 6)
    for left, right in zip((straight[0], straight[2]), (fresh[0], fresh[2]), strict=True):
        wanted, got = left.state_dict(), right.state_dict()
        assert wanted.keys() == got.keys()
        assert all(torch.equal(wanted[key], got[key]) for key in wanted if not key.endswith("_extra_state"))
        assert torch.equal(wanted["_extra_state"]["rng"], got["_extra_state"]["rng"])
