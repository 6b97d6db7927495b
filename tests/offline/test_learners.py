"""Every learner from data alone, on batches of poor behaviour whose optimum is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.off_policy import chain
from tests.offline.tasks import GAMMA, GOOD, acted, aimless, going_on, make, reluctant, sequences, way
from uniarena import checkpoint
from uniarena.optim.precision import Precision
from uniarena.registry import BUILT_IN

FAST = {"learning_rate": 3e-3}
CRITICS = {**FAST, "tau": 0.05}
CONTINUOUS: dict[str, dict[str, Any]] = {
    "td3_bc": {**CRITICS, "policy_delay": 1},
    "rebrac": {**CRITICS, "policy_delay": 1},
    "iql": CRITICS,
    "awac": {**CRITICS, "advantage_scale": 3.0},
    "bcq": {**CRITICS, "model_hidden_sizes": [64], "reach": 0.1},
    "cql": {**CRITICS, "policy_learning_rate": 3e-3, "conservative": {"samples": 4, "weight": 0.5}},
}
DISCRETE: dict[str, dict[str, Any]] = {
    "iql": {**CRITICS, "expectile": 0.9, "advantage_scale": 40.0},
    "awac": {**CRITICS, "advantage_scale": 20.0},
    "cql": {**CRITICS, "policy_learning_rate": 3e-3, "alpha": 0.01, "conservative": {"weight": 0.05}},
    "discrete_bcq": {**CRITICS, "threshold": 0.2},
    "discrete_cql": {**FAST, "tau": 0.05, "conservative": 0.05},
}
ALL = [("bc", "continuous", FAST), ("bc", "discrete", FAST)]
ALL += [("decision_transformer", "continuous", FAST)]
ALL += [(name, "continuous", own) for name, own in CONTINUOUS.items()]
ALL += [(name, "discrete", own) for name, own in DISCRETE.items()]


def made(name: str, kind: str, seed: int = 0, **fields: Any) -> Any:
    if kind == "continuous":
        return make(name, seed=seed, **fields)
    return make(name, chain.SPACE, chain.ACTIONS, seed=seed, **fields)


def learned(name: str, kind: str, updates: int, **fields: Any) -> Any:
    learner, generator = made(name, kind, **fields), torch.Generator().manual_seed(1)
    for _ in range(updates):
        learner.update((aimless if kind == "continuous" else reluctant)(128, generator))
    return learner


def test_every_learner_is_tried() -> None:
    known = {name for name, path in BUILT_IN["learner"].items() if ".offline." in path}
    assert known == {name for name, _, _ in ALL}


def test_cloning_does_as_the_data_does() -> None:
    assert acted(learned("bc", "continuous", 300, **FAST)).abs().max() < 0.15, "its mean"
    learner = learned("bc", "discrete", 300, **FAST)
    assert way(learner) == [0] * chain.STATES
    with torch.no_grad():
        p = learner.model(torch.eye(chain.STATES)).dist.log_p.exp()
    assert (p[:, 1] - 0.25).abs().max() < 0.08


@pytest.mark.parametrize("name", CONTINUOUS)
def test_better_than_cloning_where_actions_are_continuous(name: str) -> None:
    found = acted(learned(name, "continuous", 400, **CONTINUOUS[name]))
    assert (found - GOOD).abs().mean() < 0.2, "cloning is 0.5 away"


@pytest.mark.parametrize("name", DISCRETE)
def test_better_than_cloning_where_actions_are_discrete(name: str) -> None:
    assert way(learned(name, "discrete", 500, **DISCRETE[name])) == [1] * chain.STATES


@pytest.mark.parametrize(("name", "kind", "fields"), ALL)
def test_a_saved_learner_continues_bit_for_bit(name: str, kind: str, fields: Any, tmp_path: Path) -> None:
    draw = sequences if name == "decision_transformer" else going_on if kind == "continuous" else reluctant

    def run(learner: Any, generator: torch.Generator, updates: int) -> None:
        for index in range(updates):
            learner.set_progress(index / 10)
            learner.update(draw(32, generator))

    fields = {**fields, "learning_rate": {"type": "linear", "start": 1e-2}}
    straight, first = made(name, kind, **fields), made(name, kind, **fields)
    generator = torch.Generator().manual_seed(7)
    run(straight, generator, 3)
    after = generator.get_state()
    run(straight, generator, 3)
    run(first, torch.Generator().manual_seed(7), 3)
    checkpoint.save(tmp_path / "saved", {"learner": first.state_dict()}, {})
    resumed = made(name, kind, seed=5, **fields)
    resumed.load_state_dict(checkpoint.load(tmp_path / "saved")[0]["learner"])
    generator.set_state(after)
    run(resumed, generator, 3)
    pairs = zip(straight.state_dict().items(), resumed.state_dict().items(), strict=True)
    for (key, a), (_, b) in pairs:
        if isinstance(a, Tensor):
            assert torch.equal(a, b), key


@pytest.mark.parametrize(("name", "kind", "fields"), ALL)
def test_metrics_are_numbers(name: str, kind: str, fields: Any) -> None:
    learner = made(name, kind, **fields)
    draw = sequences if name == "decision_transformer" else going_on if kind == "continuous" else reluctant
    update = learner.update(draw(64, torch.Generator().manual_seed(0)))
    assert all(value.dim() == 0 and bool(value.isfinite()) for value in update.metrics.values())
    assert {"learning_rate"} < set(update.metrics)


def test_values_stay_below_what_the_data_pays_where_they_are_conservative() -> None:
    """Of one state of the chain only one action is in the data: the other is valued lower, without it higher."""
    found = []
    for weight in (0.0, 1.0):
        learner, generator = made("discrete_cql", "discrete", **FAST, conservative=weight), torch.Generator()
        for _ in range(150):
            learner.update(reluctant(64, generator, right=0.0))
        with torch.no_grad():
            q = learner.model.q(torch.eye(chain.STATES))
        found.append((q[:, 1] - q[:, 0]).max().item())
    assert found[1] < -1.0 < found[0]


def test_the_weight_of_the_gap_is_adapted_to_a_threshold() -> None:
    weights = []
    for threshold in (-5.0, 50.0):
        own = {"threshold": threshold, "samples": 2, "learning_rate": 0.05, "weight": 1.0}
        learner, generator = make("cql", **CRITICS, conservative=own), torch.Generator().manual_seed(0)
        for _ in range(20):
            metrics = learner.update(aimless(32, generator)).metrics
        weights.append(float(metrics["conservative_weight"]))
        assert "conservative" in " ".join(learner.state_dict())
    assert weights[0] > 1.5 and weights[1] < 0.6


def test_held_out_rows_are_not_learned_from() -> None:
    learner, generator = make("bc", **FAST, validation_share=0.5), torch.Generator().manual_seed(0)
    batch = aimless(64, generator)
    kept, apart = learner._split(batch)
    assert len(kept) + len(apart) == 64 and 10 < len(apart) < 54
    other = make("bc", **FAST, validation_share=0.5)
    changed = batch.action.clone()
    where = torch.isin(batch.index, apart.index)
    changed[where] = 0.0
    learner.update(batch)
    other.update(batch.replace(action=changed))
    pairs = zip(learner.model.parameters(), other.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_rows_of_an_episode_are_held_out_together() -> None:
    learner = make("bc", validation_share=0.3)
    episode = torch.arange(100).repeat_interleave(10)
    batch = aimless(1000, torch.Generator().manual_seed(0)).replace(episode_id=episode)
    kept, apart = learner._split(batch)
    assert set(kept.episode_id.tolist()).isdisjoint(apart.episode_id.tolist()) and 100 < len(apart) < 600


def test_too_large_a_policy_is_told_by_held_out_rows() -> None:
    """Sixty rows learned by heart: the loss falls, that of rows held out rises."""
    learner, generator = (
        make("bc", **FAST, validation_share=0.4, policy={"hidden_sizes": [64, 64]}),
        torch.Generator(),
    )
    batch = aimless(60, generator.manual_seed(0))
    seen = [learner.update(batch).metrics for _ in range(400)]
    held = [float(metrics["validation_loss"]) for metrics in seen]
    assert float(seen[-1]["loss"]) < float(seen[0]["loss"]) and held[-1] > min(held) + 0.1


def test_deterministic_cloning_is_least_squares() -> None:
    learner = learned("bc", "continuous", 200, **FAST, deterministic=True)
    assert acted(learner).abs().max() < 0.15
    metrics = learner.update(aimless(256, torch.Generator().manual_seed(3))).metrics
    expected = 0.25 + 0.0625  # variance of two values one apart, in both dimensions, and the noise
    assert float(metrics["loss"]) == pytest.approx(expected, abs=0.05)


def test_the_weighted_target_by_hand() -> None:
    learner = make("iql")
    rows = going_on(8, torch.Generator().manual_seed(0))
    rows = rows.replace(inputs=rows.obs, next_inputs=rows.next_obs)
    with torch.no_grad():
        expected = rows.reward + GAMMA * learner.model.v(rows.next_obs)
        q = learner.model.q(rows.obs, learner.model.scale(rows.action))
    loss, metrics = learner.value_loss(rows)
    assert float(metrics["target"]) == pytest.approx(float(expected.mean()))
    torch.testing.assert_close(loss.detach(), 0.5 * (q - expected).square().sum(0).mean())


def test_the_penalised_target_by_hand() -> None:
    learner = make("rebrac", target_noise=0.0, behaviour_target_weight=0.5)
    plain = make("rebrac", target_noise=0.0, behaviour_target_weight=0.0)
    assert (learner.records, plain.records) == (("next_action",), ())
    rows = going_on(8, torch.Generator().manual_seed(0))
    rows = rows.replace(inputs=rows.obs, next_inputs=rows.next_obs, followed=torch.arange(8) < 4)
    with torch.no_grad():
        action = learner.policy_target.module.params(rows.next_obs)[0].tanh()
    distance = (action - learner.model.scale(rows.next_action)).square().mean(-1)
    less = plain.value_target(rows) - learner.value_target(rows)
    torch.testing.assert_close(
        less, torch.where(rows.followed, GAMMA * 0.5 * distance, 0.0), atol=1e-5, rtol=1e-4
    )
    with pytest.raises(KeyError, match="followed"):
        learner.value_target(rows.without("followed"))


def test_the_loss_of_td3_bc_by_hand() -> None:
    learner = make("td3_bc", q_weight=2.5, behaviour_weight=1.0)
    rows = going_on(8, torch.Generator().manual_seed(0))
    rows = rows.replace(inputs=rows.obs, next_inputs=rows.next_obs)
    with torch.no_grad():
        action = learner.model.policy.network.params(rows.obs)[0].tanh()
        q = learner.model.q(rows.obs, action)[0]
    distance = (action - learner.model.scale(rows.action)).square().mean()
    loss, _ = learner.policy_loss(rows)
    torch.testing.assert_close(
        loss.detach(), -2.5 / q.abs().mean() * q.mean() + distance, atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize(("name", "kind", "fields"), ALL)
def test_losses_in_16_bits_move_parameters_that_stay_in_32(name: str, kind: str, fields: Any) -> None:
    draw = sequences if name == "decision_transformer" else going_on if kind == "continuous" else reluctant

    def stepped(precision: Precision | None) -> Any:
        learner = made(name, kind, **fields)
        learner.minimize.precision = precision
        found = learner.update(draw(64, torch.Generator().manual_seed(0))).metrics
        assert all(bool(value.isfinite()) for value in found.values())
        return [p.detach().clone() for p in learner.parameters()]

    exact, short = stepped(None), stepped(Precision("bf16"))
    assert all(a.dtype == b.dtype == torch.float32 for a, b in zip(exact, short, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(exact, short, strict=True)), "it made a difference"
    assert all((a - b).abs().max() < 0.05 for a, b in zip(exact, short, strict=True))
