"""What steadies gradients works for every learner and each of its networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces

from tests.learners.test_with_networks import build, experience
from tests.off_policy import chain, targets
from uniarena import Agent, make_env
from uniarena.learners.on_policy.presets import A2C, APPO, IMPALA, PPO, TRPO, RMSpropConfig
from uniarena.optim import OptimizerConfig, global_norm

ON_POLICY: dict[str, Any] = {"ppo": PPO, "a2c": A2C, "trpo": TRPO, "impala": IMPALA, "appo": APPO}
KINDS = ["ppo", "a2c", "trpo", "impala", "appo", "dqn", "sac", "td3", "tqc"]
DEVICES: dict[str, dict[str, Any]] = {
    "sam": {"type": "sam", "rho": 0.05},
    "sam-sgd": {"type": "sam", "base": "sgd"},
    "layer": {"clip_by": "layer"},
    "units": {"agc": 0.01},
    "quantile": {"clip_quantile": 0.01},
    "normalize": {"normalize": True},
    "accumulate": {"accumulate": 3},
}


def updated(kind: str, optimizer: dict[str, Any], updates: int = 2, **fields: Any) -> Any:
    """The learner after so many updates."""
    if kind in ON_POLICY:
        preset = ON_POLICY[kind]
        own = RMSpropConfig if kind in ("a2c", "impala") else OptimizerConfig
        learner, model = build(
            spaces.Discrete(3), preset=preset, batch_size=16, n_epochs=2, optimizer=own(**optimizer), **fields
        )
        for k in range(updates):
            learner.update(experience(model, 16, 2, k))
        return learner
    if kind == "dqn":
        dqn = chain.make(optimizer=OptimizerConfig(**optimizer), **fields)
        for _ in range(updates):
            dqn.update(chain.chain())
        return dqn
    made: Any = targets.make(kind, optimizer=optimizer, **fields)
    for k in range(updates):
        made.update(targets.going_on(32, torch.Generator().manual_seed(k)))
    return made


def parameters(learner: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in learner.model.parameters()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_learner_steps_with_it(kind: str, device: str) -> None:
    fields: dict[str, Any] = {"max_grad_norm": 0.01} if device == "layer" else {}
    updates = 12 if device == "quantile" else 2  # it needs ten norms
    plain, steady = (updated(kind, own, updates, **fields) for own in ({}, DEVICES[device]))
    pairs = list(zip(parameters(plain), parameters(steady), strict=True))
    assert all(bool(x.isfinite().all()) for _, x in pairs)
    assert not all(torch.equal(a, b) for a, b in pairs), "it does something"
    if device == "accumulate" and kind in ("dqn", "ppo"):  # the others draw noise, and draw it in parts
        difference = global_norm({str(k): a - b for k, (a, b) in enumerate(pairs)})
        assert float(difference) < 1e-3, "the step is that of the whole batch"


@pytest.mark.parametrize("kind", ["ppo", "sac", "td3", "dqn"])
def test_bounds_by_part_hold_for_the_parts(kind: str) -> None:
    """With plain SGD of rate 1, what a part moves in one step is its clipped gradient."""
    sgd = {"type": "sgd"}
    bound = {"policy": 1e-3, "value": 1e-4}
    learner = updated(kind, sgd, max_grad_norm=bound, learning_rate=1.0)
    seen = {}
    for optimizer in learner.optimizers.values():
        gradients = optimizer.gradients()
        for name, gradient in gradients.items():
            part = optimizer._clipping.part or ("value" if name.startswith(("value", "q.")) else "policy")
            if not name.startswith("temperature"):
                seen.setdefault(part, []).append(gradient)
    norms = {part: float(global_norm({str(k): g for k, g in enumerate(own)})) for part, own in seen.items()}
    assert norms and all(0.0 < norm <= bound[part] * 1.0001 for part, norm in norms.items())


def test_a_bonus_has_the_bound_of_the_intrinsic_part() -> None:
    env = make_env("CartPole-v1", num_envs=1)
    try:
        parts = {"intrinsic": {"type": "rnd", "hidden_sizes": [8], "feature_dim": 4}}
        bounds = {"policy": 0.5, "intrinsic": 0.25}
        agent = Agent.assemble(env, {"type": "ppo", "max_grad_norm": bounds}, parts=parts)
        assert agent.bonuses[0].minimize.max_grad_norm == 0.25
        plain = Agent.assemble(env, "ppo", parts=parts)
        assert plain.bonuses[0].minimize.max_grad_norm is None
    finally:
        env.close()
