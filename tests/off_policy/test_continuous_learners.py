"""SAC, TQC, REDQ, DroQ, TD3 and DDPG on batches made by hand."""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tests.off_policy.targets import ACT, GOAL, LEARNERS, OBS, WIDTH, batch, going_on, make
from uniarena import checkpoint
from uniarena.batch import Batch
from uniarena.config import ConfigError
from uniarena.envs.notices import UniArenaNotice
from uniarena.explorers.gaussian_noise import GaussianNoise
from uniarena.nets.normalizer import ObservationNormalizer

GENTLE = {"policy_delay": 1, "updates_per_env_step": 1.0}


def settle(learner: Any, updates: int, **kwargs: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(updates):
        learner.update(batch(64, generator, **kwargs))


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_every_learner_finds_the_target_in_units_of_each_dimension(name: str) -> None:
    fields = dict(GENTLE) if name in ("redq", "droq") else {}
    if LEARNERS[name].Config.__name__ not in ("TD3Config", "DDPGConfig"):
        fields["target_entropy"] = -6.0  # narrow, so that the mode is sharp
    learner = make(name, **fields)
    settle(learner, {"td3": 600, "ddpg": 450}.get(name, 250))
    action, _ = learner.model.policy.frozen().mode(torch.zeros(16, 2))
    worst = ((action - GOAL) / WIDTH).abs().max().item()
    assert worst < 0.15
    assert (action[:, 1] >= 90.0).all() and (action[:, 1] <= 110.0).all()


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_metrics_and_priorities(name: str) -> None:
    learner = make(name, policy_delay=1)
    update = learner.update(going_on(32, torch.Generator().manual_seed(0)))
    expected = {"q", "target", "value_loss", "value_grad_norm", "td_error", "policy_loss", "policy_grad_norm"}
    expected |= {"learning_rate"}
    expected |= set() if name in ("td3", "ddpg") else {"alpha", "entropy"}
    assert set(update.metrics) == expected
    assert all(value.dim() == 0 and value.isfinite() for value in update.metrics.values())
    assert update.priority is not None and update.priority.shape == (32,) and (update.priority >= 0).all()


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_critics_get_no_gradient_from_the_policy_loss(name: str) -> None:
    learner: Any = make(name)
    rows = going_on(16, torch.Generator().manual_seed(0))
    loss, _ = learner.policy_loss(rows.replace(inputs=rows.obs, next_inputs=rows.next_obs))
    loss.backward()
    assert all(p.grad is None and p.requires_grad for p in learner.model.q.parameters())
    gradients = [p.grad for p in learner.model.policy.parameters()]
    assert all(g is not None and g.abs().sum() > 0 for g in gradients)


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_a_saved_learner_continues_bit_for_bit(name: str, tmp_path: Path) -> None:
    def run(learner: Any, generator: torch.Generator, updates: int) -> None:
        for index in range(updates):
            learner.set_progress(index / 10)
            learner.update(going_on(16, generator))

    fields = {"policy_delay": 2, "learning_rate": {"type": "linear", "start": 1e-2}}
    straight, first = make(name, **fields), make(name, **fields)
    generator = torch.Generator().manual_seed(7)
    run(straight, generator, 3)
    after = generator.get_state()
    run(straight, generator, 3)
    run(first, torch.Generator().manual_seed(7), 3)
    checkpoint.save(tmp_path / "saved", {"learner": first.state_dict()}, {})
    resumed = make(name, seed=5, **fields)
    resumed.load_state_dict(checkpoint.load(tmp_path / "saved")[0]["learner"])
    generator.set_state(after)
    run(resumed, generator, 3)
    for (key, a), (_, b) in zip(straight.state_dict().items(), resumed.state_dict().items(), strict=True):
        if isinstance(a, Tensor):
            assert torch.equal(a, b), key


def moved(learner: Any, updates: int = 4) -> list[tuple[bool, bool]]:
    """Whether critics and policy changed, update by update."""
    generator, found = torch.Generator().manual_seed(0), []
    for _ in range(updates):
        before = copy.deepcopy(learner.model.state_dict())
        learner.update(going_on(16, generator))
        after = learner.model.state_dict()
        found.append(
            tuple(
                any(not torch.equal(before[key], after[key]) for key in before if key.startswith(part))
                for part in ("q.", "policy.")
            )
        )
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_delays_of_policy_and_value(name: str) -> None:
    assert moved(make(name, policy_delay=2)) == [(True, False), (True, True)] * 2
    assert moved(make(name, policy_delay=1, value_delay=2)) == [(False, True), (True, True)] * 2


def test_targets_of_td3_move_with_the_policy() -> None:
    learner: Any = make("td3")
    weight = learner.q_target.module.body.layers[0].weight
    first = weight.clone()
    learner.update(going_on(16, torch.Generator().manual_seed(0)))
    assert torch.equal(weight, first)
    learner.update(going_on(16, torch.Generator().manual_seed(1)))
    assert not torch.equal(weight, first)


def prepared(rows: Batch) -> Batch:
    return rows.replace(inputs=rows.obs, next_inputs=rows.next_obs)


def test_the_soft_target_by_hand() -> None:
    learner: Any = make("sac", alpha=0.3)
    rows = prepared(going_on(8, torch.Generator().manual_seed(0)))
    noise = torch.randn(1, 8, 2, generator=torch.Generator().set_state(learner.rng.get_state()))[0]
    target = learner.value_target(rows)
    with torch.no_grad():
        dist = learner.model.policy(rows.next_obs)[0]
        u = dist.base.mean + dist.base.std * noise
        row = u.tanh()
        q = learner.target.module(rows.next_obs, row).amin(0)
        density = -0.5 * noise**2 - dist.base.log_std - 0.5 * math.log(2 * math.pi)
        log_prob = (density - torch.log(1 - row**2)).sum(-1)  # of the action scaled to [-1, 1]
    torch.testing.assert_close(target, rows.reward + 0.9 * (q - 0.3 * log_prob), atol=1e-3, rtol=1e-3)


def test_the_smoothed_target_by_hand() -> None:
    learner: Any = make("td3", target_noise=0.2, target_noise_clip=0.1)
    rows = prepared(going_on(8, torch.Generator().manual_seed(0)))
    noise = torch.randn(8, 2, generator=torch.Generator().set_state(learner.rng.get_state()))
    target = learner.value_target(rows)
    with torch.no_grad():
        row = learner.policy_target.module.params(rows.next_obs)[0].tanh()
        row = (row + (0.2 * noise).clamp(-0.1, 0.1)).clamp(-1.0, 1.0)
        q = learner.q_target.module(rows.next_obs, row).amin(0)
    torch.testing.assert_close(target, rows.reward + 0.9 * q)


def test_the_first_critic_alone_leads_td3s_policy() -> None:
    learner: Any = make("td3")
    rows = prepared(going_on(8, torch.Generator().manual_seed(0)))
    with torch.no_grad():
        row = learner.model.policy.network.params(rows.obs)[0].tanh()
        q = learner.model.q(rows.obs, row)
    torch.testing.assert_close(learner.policy_loss(rows)[0], -q[0].mean())


def test_redq_draws_its_critics_for_every_target() -> None:
    learner: Any = make("redq")
    rows, asked = going_on(8, torch.Generator().manual_seed(0)), set()
    forward = learner.target.module.forward
    learner.target.module.forward = lambda *a, **k: (asked.add(tuple(a[3].tolist())), forward(*a, **k))[1]
    for _ in range(10):
        learner.update(rows)
    assert len(asked) > 3 and all(len(set(subset)) == 2 for subset in asked)


@pytest.mark.parametrize("name", ["sac", "tqc", "td3"])
def test_bootstrapped_targets_are_cut(name: str) -> None:
    learner: Any = make(name, target_clip=[-0.5, 0.25])
    target = learner.value_target(prepared(going_on(64, torch.Generator().manual_seed(0))))
    assert target.min().item() == pytest.approx(-0.5) and target.max().item() <= 0.25


def test_rows_of_weight_zero_count_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = going_on(16, generator)
    spoilt = rows.replace(
        reward=torch.where(torch.arange(16) < 8, rows.reward, 1e3), weight=(torch.arange(16) < 8).float()
    )
    a, b = (make("sac") for _ in range(2))
    a.update(rows.replace(weight=spoilt.weight))
    b.update(spoilt)
    assert all(torch.equal(x, y) for x, y in zip(a.model.q.parameters(), b.model.q.parameters(), strict=True))


def test_a_clipped_td_error_bounds_the_gradient() -> None:
    norms = []
    for td_clip in (None, 1.0):
        learner = make("sac", td_clip=td_clip)
        rows = batch(16, torch.Generator().manual_seed(0))
        norms.append(learner.update(rows.replace(reward=rows.reward * 1e4)).metrics["value_grad_norm"].item())
    assert norms[1] < norms[0] / 1e3


# -- discrete actions ------------------------------------------------------------------------------------------------
MASKED = spaces.Dict({"obs": OBS, "action_mask": spaces.MultiBinary(3)})


def choices(generator: torch.Generator, mask: Tensor | None = None) -> Batch:
    """Three actions that pay 0, 1 and 2."""
    obs: Any = 2 * torch.rand(64, 2, generator=generator) - 1
    if mask is not None:
        obs = {"obs": obs, "action_mask": mask.expand(64, 3)}
    action = torch.randint(3 if mask is None else 2, (64,), generator=generator)
    return Batch(
        (64,), obs=obs, action=action, reward=action.float(), next_obs=obs, discount=torch.full((64,), 0.5)
    )


def test_discrete_sac_prefers_what_pays_and_keeps_half_of_the_entropy() -> None:
    learner: Any = make("sac", spaces.Discrete(3))
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        metrics = learner.update(choices(generator)).metrics
    assert learner.model.policy.frozen().mode(torch.zeros(4, 2))[0].tolist() == [2] * 4
    assert metrics["entropy"].item() == pytest.approx(0.5 * math.log(3.0), abs=0.15)


def test_masks_count_in_targets_and_in_the_entropy_target() -> None:
    learner: Any = make("sac", spaces.Discrete(3), MASKED)
    generator, mask = torch.Generator().manual_seed(0), torch.tensor([True, True, False])
    # The forbidden action has a huge Q, which must not enter.
    learner.model.q.body.layers[-1].bias.data[:, :, 2] = 1e6
    learner.target.reset()
    rows = choices(generator, mask)
    target = learner.value_target(prepared(rows))
    assert target.max().item() < 10.0
    for _ in range(300):
        metrics = learner.update(choices(generator, mask)).metrics
    assert learner.model.policy.frozen().mode(choices(generator, mask).obs)[0].unique().tolist() == [1]
    assert metrics["entropy"].item() == pytest.approx(0.5 * math.log(2.0), abs=0.15)


def test_the_unreachable_default_of_the_paper_is_bounded_and_told_once() -> None:  # case B32
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UniArenaNotice)
        fields = {"target_entropy": 0.98 * math.log(2.0), "alpha_learning_rate": 2e-2}
        learner: Any = make("sac", spaces.Discrete(2), alpha_bounds=[1e-6, 1.5], **fields)
        generator = torch.Generator().manual_seed(0)
        for _ in range(200):
            rows = choices(generator)
            rows = rows.replace(action=rows.action % 2, reward=100.0 * (rows.action % 2).float())
            alpha = learner.update(rows).metrics["alpha"].item()
        assert alpha <= 1.5 + 1e-5
    messages = [str(w.message) for w in told if "target_entropy" in str(w.message)]
    assert len(messages) == 1 and "largest alpha" in messages[0] and "alpha_bounds" in messages[0]


def test_an_impossible_entropy_is_told_at_once() -> None:
    with pytest.warns(UniArenaNotice, match=r"no policy here has more than 0\.693 nats"):
        make("sac", spaces.Discrete(2), target_entropy=0.7)
    with pytest.warns(UniArenaNotice, match="cannot be reached"):
        make("sac", target_entropy=2 * math.log(2.0))


def test_tiny_bounds_are_like_any_others() -> None:  # case B32
    learner: Any = make("sac", spaces.Box(-1e-3, 1e-3, (2,)))
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        row = 2 * torch.rand(64, 2, generator=generator) - 1
        rows = batch(64, generator, action=row * 1e-3)
        rows = rows.replace(reward=-(row - 0.5).square().sum(-1))
        metrics = learner.update(rows).metrics
    assert metrics["alpha"].item() < 1.0
    assert -3.0 < metrics["entropy"].item() < 2 * math.log(2.0) + 0.3  # an estimate from 64 samples
    action, _ = learner.model.policy.frozen().mode(torch.zeros(1, 2))
    assert ((action / 1e-3 - 0.5).abs() < 0.2).all()


def test_a_fixed_temperature_stays() -> None:
    learner: Any = make("sac", alpha=0.2)
    settle(learner, 3)
    assert (
        learner.temperature.alpha.item() == pytest.approx(0.2) and "alpha_optimizer" not in learner.optimizers
    )
    zero: Any = make("sac", alpha=0)
    settle(zero, 3)
    assert zero.temperature.alpha.item() == 0.0


# -- spaces ----------------------------------------------------------------------------------------------------------
HALF_OPEN = spaces.Box(np.float32([-1.0, -np.inf]), np.float32([1.0, np.inf]))


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_infinite_bounds_are_refused_by_dimension_with_the_way_out(name: str) -> None:  # case B15
    with pytest.raises(ConfigError, match="dimension 1 of") as caught:
        make(name, HALF_OPEN)
    assert "distribution: gaussian" in str(caught.value) and "finite action bounds" in str(caught.value)


def test_an_unsquashed_gaussian_takes_infinite_bounds() -> None:  # case B15
    policy = {"distribution": "gaussian", "hidden_sizes": [32]}
    learner: Any = make("sac", spaces.Box(-np.inf, np.inf, (2,)), policy=policy)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        action = 6 * torch.rand(64, 2, generator=generator)
        rows = batch(64, generator, action=action)
        learner.update(rows.replace(reward=-(action - 3.0).abs().sum(-1)))
    action, _ = learner.model.policy.frozen().mode(torch.zeros(1, 2))
    assert ((action - 3.0).abs() < 0.75).all()
    assert all(p.isfinite().all() for p in learner.model.parameters())


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_networks_are_float32_whatever_space_and_default_are(name: str) -> None:  # case B17
    wide = spaces.Box(-2.0, 2.0, (2,), np.float64), spaces.Box(-1.0, 1.0, (2,), np.float64)
    torch.set_default_dtype(torch.float64)
    try:
        learner = make(name, *wide)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {p.dtype for p in learner.parameters()} == {torch.float32}
    learner.update(batch(16, torch.Generator().manual_seed(0)))
    action, _ = learner.model.policy.frozen().mode(torch.zeros(3, 2))
    assert action.dtype == torch.float32


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_dict_actions_of_boxes(name: str) -> None:
    space = spaces.Dict({"arm": spaces.Box(-1.0, 1.0, (2,)), "hand": spaces.Box(0.0, 4.0, ())})
    learner = make(name, space, policy_delay=1)
    rows = going_on(16, torch.Generator().manual_seed(0))
    action = {"arm": torch.rand(16, 2) * 2 - 1, "hand": torch.rand(16) * 4}
    update = learner.update(rows.replace(action=action))
    assert update.metrics["policy_loss"].isfinite()
    mode, _ = learner.model.policy.frozen().mode(torch.zeros(3, 2))
    assert mode["arm"].shape == (3, 2) and mode["hand"].shape == (3,)


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(2)])
def test_other_actions_are_refused_by_name(space: Any) -> None:
    with pytest.raises(ConfigError, match="continuous actions"):
        make("sac", space)


def test_quantiles_and_deterministic_policies_are_for_continuous_actions() -> None:
    for name in ("tqc", "td3", "ddpg"):
        with pytest.raises(ConfigError, match="continuous actions"):
            make(name, spaces.Discrete(3))


def test_observation_statistics_are_live_in_policy_critics_and_targets() -> None:
    normalizer = ObservationNormalizer(OBS)
    learner: Any = make("td3", normalizer=normalizer)
    rows = going_on(32, torch.Generator().manual_seed(0))
    seen = []
    forward = learner.q_target.module.forward
    learner.q_target.module.forward = lambda obs, *rest: (seen.append(obs), forward(obs, *rest))[1]
    learner.update(rows)
    normalizer.accumulate(rows.obs * 5.0 + 3.0, torch.ones(32, dtype=torch.bool))
    normalizer.merge()
    learner.update(rows)
    assert not torch.equal(seen[0], seen[1])
    torch.testing.assert_close(seen[1], normalizer(rows.next_obs))


# -- configs ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tau": 0}, "tau"),
        ({"dropout": 1.0}, "dropout"),
        ({"target_clip": [1, 0]}, "target_clip"),
        ({"subset_size": 3}, "subset_size"),
        ({"policy_delay": 2, "value_delay": 2}, "value_delay"),
        ({"alpha": -0.1}, "alpha"),
        ({"alpha_bounds": [0, 1]}, "alpha_bounds"),
        ({"alpha_init": 1e4}, "alpha_init"),
        ({"td_clip": 0}, "td_clip"),
        ({"n_critics": 0}, "n_critics"),
    ],
)
def test_impossible_settings_are_named(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make("sac", **fields)
    assert caught.value.path == f"learner.{path}"


def test_quantiles_that_leave_none_are_named() -> None:
    with pytest.raises(ConfigError, match="none would be left"):
        make("tqc", n_quantiles=2, drop_quantiles=2)


@pytest.mark.parametrize(
    ("name", "policy", "match"),
    [
        ("sac", {"gsde": True, "distribution": "gaussian"}, "gsde"),
        ("sac", {"share_encoder": True}, "share_encoder"),
        ("td3", {"distribution": "beta"}, "deterministic"),
    ],
)
def test_policies_that_do_not_fit_are_refused(name: str, policy: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make(name, policy=policy)


def test_adam_has_the_papers_epsilon_unless_told_otherwise() -> None:
    learner: Any = make("sac")
    assert learner.value_optimizer.groups[0]["eps"] == 1e-8
    assert make("sac", optimizer={"eps": 1e-4}).value_optimizer.groups[0]["eps"] == 1e-4  # type: ignore[union-attr]
    own: Any = make("sac", policy_learning_rate=1e-5, alpha_learning_rate=0.5)
    rates = [opt.lr for opt in (own.value_optimizer, own.policy_optimizer, own.alpha_optimizer)]
    assert rates == [3e-3, 1e-5, 0.5]


# -- parts of users --------------------------------------------------------------------------------------------------
class OwnPolicy(nn.Module):
    """A user's module; it does not know which learner it is for."""

    def __init__(self, obs_dim: int, act_dim: int, factor: int = 1, values: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, 32), nn.ReLU(), nn.Dropout(0.0))
        self.out, self.values = nn.Linear(32, factor * act_dim), values
        self.v = nn.Linear(32, 1)

    def forward(self, obs: Tensor) -> Any:
        hidden = self.body(obs)
        return (self.v(hidden), self.out(hidden)) if self.values else self.out(hidden)


class OwnExplorer(GaussianNoise):
    """A user's explorer."""


@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.parametrize(("factor", "values"), [(1, False), (2, True)])
def test_a_users_policy_and_explorer_serve_every_learner(name: str, factor: int, values: bool) -> None:
    policy = {"network": OwnPolicy, "factor": factor, "values": values}
    learner: Any = make(name, policy=policy, learning_rate=5e-3)
    settle(learner, 500 if name == "td3" else 200)
    frozen = learner.model.policy.frozen()
    action, _ = frozen.mode(torch.zeros(4, 2))
    assert ((action - GOAL) / WIDTH).abs().max().item() < 0.4
    explorer = OwnExplorer(OwnExplorer.Config(), ACT)
    noisy, _ = explorer.act(frozen, torch.zeros(4, 2), None, None, None, torch.Generator().manual_seed(0))
    assert noisy.shape == (4, 2) and not torch.equal(noisy, action)


class Remembers(OwnPolicy):
    """Has memory, which single rows cannot serve."""

    def initial_state(self, count: int) -> Tensor:
        return torch.zeros(count, 1)

    def forward(self, obs: Tensor, state: Tensor, is_first: Tensor) -> Any:
        return super().forward(obs), None, state


def test_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory"):
        make("sac", policy={"network": Remembers})


# -- gradients written down by hand ----------------------------------------------------------------------------------
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sac": ("sac", {}),
    "clipped": ("sac", {"td_clip": 0.3, "target_clip": (-1.0, 1.0)}),
    "mean": ("sac", {"policy_reduce": "mean", "alpha": 0.1}),
    "one critic": ("sac", {"n_critics": 1}),
    "redq": ("redq", {"n_critics": 4, "policy_delay": 2}),
    "td3": ("td3", {}),
}


def by_autograd(learner: Any) -> Any:
    for name in ("_by_hand", "_policy_by_hand"):
        if hasattr(learner, name):
            assert getattr(learner, name) is not None
            setattr(learner, name, None)
    return learner


@pytest.mark.parametrize("variant", sorted(VARIANTS))
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_hand_written_gradients_are_autograd_s(variant: str, activation: str) -> None:
    name, fields = VARIANTS[variant]
    section = {"hidden_sizes": [16, 16], "activation": activation}
    by_hand, recorded = (make(name, policy=dict(section), value=dict(section), **fields) for _ in range(2))
    by_autograd(recorded)
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        rows = going_on(16, generator)
        rows = rows.replace(weight=torch.rand(16, generator=generator))
        found, expected = by_hand.update(rows), recorded.update(rows)
        assert found.metrics.keys() == expected.metrics.keys()
        for key, value in found.metrics.items():
            torch.testing.assert_close(value, expected.metrics[key], rtol=1e-5, atol=1e-6)
    for a, b in zip(by_hand.parameters(), recorded.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_hook_on_a_network_gets_its_graph() -> None:
    for part in ("q", "policy.network"):
        learner: Any = make("sac")
        seen: list[bool] = []
        module = learner.model.get_submodule(part)
        module.register_forward_hook(lambda *_, seen=seen: seen.append(torch.is_grad_enabled()))
        if part == "policy.network":  # its parameters are asked for, not the whole of it
            learner.model.policy.network.actor.register_forward_hook(
                lambda *_, seen=seen: seen.append(torch.is_grad_enabled())
            )
        learner.update(going_on(16, torch.Generator().manual_seed(0)))
        assert True in seen, part
