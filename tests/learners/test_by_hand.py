"""PPO on plain networks, with gradients by hand: the loss, the gradients and the learning of the usual way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from uniarena.batch import Batch
from uniarena.learners.on_policy.config import PolicyGradientConfig
from uniarena.learners.on_policy.policy_gradient import PolicyGradient
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.optim import Derived, Minimize, OptimizerConfig
from uniarena.seeding import Streams
from uniarena.values.model import build_model

OBS = spaces.Box(-10.0, 10.0, (5,), np.float32)
ACTIONS = {"categorical": spaces.Discrete(3), "gaussian": spaces.Box(-1.0, 1.0, (2,), np.float32)}
ROWS = 48


def learner(
    kind: str = "categorical", policy: dict[str, Any] | None = None, normal: bool = False, **fields: Any
) -> PolicyGradient:
    normalizer = ObservationNormalizer(OBS) if normal else None
    model = build_model(OBS, ACTIONS[kind], policy or {}, {}, normalizer, Streams(3))
    with torch.no_grad():  # so that no row is where a clip begins
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
    cfg = PolicyGradientConfig(**{"ent_coef": 0.02, **fields})
    return PolicyGradient(model, cfg, Minimize(cfg.max_grad_norm), torch.Generator().manual_seed(0))


def minibatch(kind: str, rows: int = ROWS) -> Batch:
    generator = torch.Generator().manual_seed(2)
    obs = torch.randn(rows, 5, generator=generator)
    noise = [torch.randn(rows, generator=generator) for _ in range(4)]
    action = torch.randint(0, 3, (rows,), generator=generator)
    if kind == "gaussian":
        action = torch.randn(rows, 2, generator=generator)
    old = -1.1 + 0.4 * noise[0] if kind == "categorical" else -3.0 + noise[0]
    fields = {"advantage": noise[1], "target": noise[2], "value": 0.3 * noise[3], "log_prob": old}
    return Batch((rows,), {"obs": obs, "action": action, **fields})


def usual(own: PolicyGradient, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    by_hand, own.loss._by_hand = own.loss._by_hand, None
    loss, metrics = own.loss(batch)
    own.loss._by_hand = by_hand
    assert isinstance(loss, Tensor)
    return loss, metrics


SETTINGS = [
    {},
    {"clip": "none", "ent_coef": 0.0},
    {"clip": "dual", "dual_clip": 1.2, "kl_coef": 0.3},
    {"value_clip": 0.2, "value_loss": "huber"},
    {"normalize_return": "running", "value_clip": 0.2},
]


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("normal", [False, True])
def test_loss_metrics_and_gradients_are_the_usual_ones(
    kind: str, settings: dict[str, Any], normal: bool
) -> None:
    own, batch = learner(kind, normal=normal, **settings), minibatch(kind)
    if own.returns is not None:
        own.returns.update(torch.tensor([1.0, 4.0, 9.0]))
    if own.model.normalizer is not None:
        own.model.normalizer.accumulate(batch.obs * 3.0 + 1.0, torch.ones(ROWS, dtype=torch.bool))
        own.model.normalizer.merge()
    loss, metrics = usual(own, batch)
    names = [name for name, _ in own.model.named_parameters()]
    expected = torch.autograd.grad(loss, list(own.model.parameters()))
    found, others = own.loss(batch)
    assert isinstance(found, Derived)
    own.optimizer.backward(found)
    torch.testing.assert_close(found.detach(), loss.detach(), rtol=1e-5, atol=1e-6)
    assert set(others) == set(metrics)
    for name in metrics:
        torch.testing.assert_close(others[name], metrics[name], rtol=1e-5, atol=2e-6)
    for name, parameter, wanted in zip(names, own.model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-6, msg=name)


def test_many_steps_end_where_the_usual_ones_do() -> None:
    batch, two = minibatch("gaussian"), (learner("gaussian"), learner("gaussian"))
    two[1].loss._by_hand = None
    for own in two:
        for _ in range(20):
            own.minimize(own.loss, batch, own.optimizer)
    for a, b in zip(two[0].model.parameters(), two[1].model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_sharpness_and_accumulation_work_on_it() -> None:
    for optimizer in (
        OptimizerConfig(type="sam"),
        OptimizerConfig(accumulate=3),
        OptimizerConfig(type="rmsprop"),
    ):
        batch, two = minibatch("categorical"), (learner(optimizer=optimizer), learner(optimizer=optimizer))
        two[1].loss._by_hand = None
        for own in two:
            for _ in range(3):
                own.minimize(own.loss, batch, own.optimizer)
        for a, b in zip(two[0].model.parameters(), two[1].model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_it_steps_aside_for_whoever_looks() -> None:
    own, batch = learner(), minibatch("categorical")
    assert isinstance(own.loss(batch)[0], Derived)
    seen: list[str] = []
    parts = {
        name: part for name, part in own.model.named_modules() if name.endswith(("torso", "layers.1", "net"))
    }
    assert len(parts) >= 4
    for name, part in parts.items():
        handle = part.register_forward_hook(lambda *_, name=name: seen.append(name))
        assert isinstance(own.loss(batch)[0], Tensor) and name in seen
        handle.remove()
    parameter = next(own.model.parameters())
    handle = parameter.register_hook(lambda gradient: gradient * 0.0)
    assert isinstance(own.loss(batch)[0], Tensor)
    handle.remove()
    parameter.requires_grad_(False)
    assert isinstance(own.loss(batch)[0], Tensor)
    parameter.requires_grad_(True)
    assert isinstance(own.loss(batch.replace(valid=torch.ones(ROWS, dtype=torch.bool)))[0], Tensor)
    assert isinstance(own.loss(batch)[0], Derived)


@pytest.mark.parametrize(
    "policy",
    [{"activation": "silu"}, {"distribution": "squashed_gaussian"}, {"gsde": True}, {"distribution": "beta"}],
)
def test_other_networks_have_autograd(policy: dict[str, Any]) -> None:
    assert learner("gaussian", policy).loss._by_hand is None


def test_values_for_targets_are_the_model_s() -> None:
    for settings in ({}, {"normalize_return": "popart"}):
        own, obs = learner(normal=True, **settings), minibatch("categorical", 300).obs
        if own.returns is not None:
            own.returns.update(torch.tensor([1.0, 4.0, 9.0]))
        with torch.no_grad():
            torch.testing.assert_close(own.value(obs), own.model.value(obs), rtol=1e-5, atol=1e-5)
