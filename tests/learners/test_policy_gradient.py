"""The policy-gradient learner on rollouts built by hand."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections import deque
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.learners.fakes import MemoryModel, TinyModel, bandit, remembered, target_task
from tests.ops.rollouts import counter
from uniarena.batch import Batch
from uniarena.config import ConfigError, parse
from uniarena.learners.base import Learner
from uniarena.learners.on_policy.config import PolicyGradientConfig
from uniarena.learners.on_policy.policy_gradient import PolicyGradient
from uniarena.learners.on_policy.presets import A2C, APPO, IMPALA, PPO
from uniarena.optim import LearnStep, Minimize, NonFiniteError, OptimizerConfig, ScheduleConfig


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ppo(model: torch.nn.Module, **fields: Any) -> PolicyGradient:
    cfg = PolicyGradientConfig(**fields)
    learner = PPO(model, cfg, Minimize(cfg.max_grad_norm), generator())  # type: ignore[arg-type]
    assert isinstance(learner, PolicyGradient)
    return learner


def weights(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def finite(metrics: dict[str, Tensor], but: tuple[str, ...] = ("explained_variance",)) -> bool:
    return all(bool(value.isfinite()) for name, value in metrics.items() if name not in but)


# -- it learns ----------------------------------------------------------------------------------------------
def train(preset: Any, model: torch.nn.Module, task: Any, updates: int, **fields: Any) -> float:
    cfg = preset.Config(**fields)
    learner = preset(model, cfg, Minimize(cfg.max_grad_norm), generator())
    noise = generator(1)
    for _ in range(updates):
        learner.update(task(model, noise))
    return float(task(model, noise).rows.reward.mean())


@pytest.mark.parametrize("clip", ["hard", "dual"])
def test_ppo_learns_to_echo(clip: str) -> None:
    model = TinyModel(3, 3)
    reward = train(
        PPO, model, lambda m, g: bandit(m, 32, 8, g), 15, learning_rate=3e-3, n_epochs=4, clip=clip
    )
    assert reward > 0.9


def test_a2c_learns_to_echo() -> None:
    model = TinyModel(3, 3)
    assert train(A2C, model, lambda m, g: bandit(m, 5, 16, g), 150, learning_rate=7e-3) > 0.9


@pytest.mark.parametrize("name", ["impala", "appo"])
def test_experience_of_an_older_policy_is_enough(name: str) -> None:
    """Every rollout is of the policy five updates ago."""
    model = TinyModel(3, 3)
    past: deque[TinyModel] = deque(maxlen=6)
    preset, fields = {
        "impala": (IMPALA, {"learning_rate": 3e-3, "max_grad_norm": 0.5}),
        "appo": (APPO, {"learning_rate": 1e-2, "batch_size": 64}),
    }[name]
    cfg = preset.Config(**fields)
    learner = preset(model, cfg, Minimize(cfg.max_grad_norm), generator())
    noise, weights_of = generator(1), []
    for _ in range(100):
        past.append(copy.deepcopy(model))
        weights_of.append(float(learner.update(bandit(past[0], 16, 8, noise)).metrics["rho"]))
    assert float(bandit(model, 16, 8, noise).rows.reward.mean()) > 0.9
    assert weights_of[0] == pytest.approx(1.0) and min(weights_of) < 0.99, "there was something to correct"


@pytest.mark.parametrize("ratio", ["joint", "atom"])
def test_ppo_learns_a_continuous_target(ratio: str) -> None:
    model = TinyModel(1, 2, continuous=True)
    train(PPO, model, lambda m, g: target_task(m, 128, 2, g), 40, learning_rate=3e-3, ratio=ratio)
    assert (model.policy(torch.ones(1)) - 0.7).abs().max().item() < 0.15


@pytest.mark.parametrize("advantage", ["gae", "monte_carlo", "n_step", "vtrace"])
def test_values_reach_the_returns_of_the_counter(advantage: str) -> None:
    # Reward 1 a step, γ 0.9, never terminated: V = 1/(1 − 0.9) = 10 on every observation.
    model = TinyModel(1, 2)
    with torch.no_grad():
        model.critic[2].bias.fill_(8.0)
    learner = ppo(model, gamma=0.9, advantage=advantage, learning_rate=1e-2, batch_size=30, n_epochs=4)
    rollout = counter(30, 10, "truncation")
    rollout = dataclasses.replace(rollout, rows=rollout.rows.replace(log_prob=torch.full((30, 1), -0.69)))
    for _ in range(60):
        learner.update(rollout)
    assert (model.value(rollout.rows.obs[:, 0]) - 10.0).abs().max().item() < 0.5


# -- targets and losses -------------------------------------------------------------------------------------
def test_targets_are_the_hand_computed_ones() -> None:
    model = TinyModel(1, 2)
    model.value = lambda obs: torch.full((len(obs),), 10.0)  # type: ignore[method-assign]
    learner = ppo(model, gamma=0.9, normalize_advantage=False)
    for end, expected in (("truncation", 10.0), ("termination", 1.0)):
        rollout = counter(30, 10, end)
        rows = rollout.rows.replace(log_prob=torch.zeros(30, 1))
        targets, _ = learner.targets(dataclasses.replace(rollout, rows=rows))
        assert targets.target[[9, 19, 29], 0].tolist() == pytest.approx([expected] * 3)
    # case B01


def test_the_discount_of_the_rows_is_used_where_given() -> None:
    model = TinyModel(1, 2)
    model.value = lambda obs: torch.full((len(obs),), 10.0)  # type: ignore[method-assign]
    rollout = counter(3, 10, "truncation")
    rows = rollout.rows.replace(log_prob=torch.zeros(3, 1), discount=torch.full((3, 1), 0.5))
    targets, _ = ppo(model, gamma=0.9, gae_lambda=0.0).targets(dataclasses.replace(rollout, rows=rows))
    assert targets.target[:, 0].tolist() == pytest.approx([6.0, 6.0, 6.0])  # 1 + 0.5·10


def test_vtrace_compares_the_present_policy_with_the_one_that_acted() -> None:
    # Logits 0: π = ½ for both actions. μ gave ¼ and 1: ratios 2 and ½, with ρ̄ = 1: ρ = 1 and ½. One-step episodes,
    # V = 0: targets ρ·r, advantages r. A row that is not valid has a junk log-prob, which reaches nothing.
    model = TinyModel(1, 2)
    for p in model.parameters():
        torch.nn.init.zeros_(p)
    rollout = bandit(TinyModel(1, 2), 3, 1, generator(), symbols=1)
    rows = rollout.rows.replace(
        action=torch.tensor([[0], [1], [0]]),
        log_prob=torch.tensor([[0.25], [1.0], [float("nan")]]).log(),
        reward=torch.tensor([[3.0], [4.0], [5.0]]),
        valid=torch.tensor([[True], [True], [False]]),
    )
    learner = ppo(model, advantage="vtrace", gae_lambda=1.0, normalize_advantage=False)
    targets, summary = learner.targets(dataclasses.replace(rollout, rows=rows))
    assert targets.target[:2, 0].tolist() == pytest.approx([3.0, 2.0])
    assert targets.advantage[:2, 0].tolist() == pytest.approx([3.0, 4.0])
    assert summary["rho"].item() == pytest.approx(0.75)


def test_corrections_reach_no_further_than_values_are_trusted() -> None:
    with pytest.raises(ConfigError, match="more than rho_bar") as caught:
        parse(PolicyGradientConfig, {"rho_bar": 1.0, "c_bar": 2.0}, "learner")
    assert caught.value.path == "learner.c_bar"


def test_loss_by_hand() -> None:
    # Two actions with logits 0: log ½ each, entropy ln 2. Old log-probs ln(½/1.5) and ln(½/0.5): ratios 1.5
    # and 0.5. A = 2, −2: hard gains 2.4 and −1.6: policy loss −0.4. V = 0, targets 1, 3: value loss (1 + 9)/2
    # = 5. Total −0.4 + 0.5·5 − 0.1·ln 2. KL: (0.5 − ln 1.5 + (−0.5 − ln 0.5))/2. Both ratios lie outside
    # 0.8…1.2.
    model = TinyModel(1, 2)
    for p in model.parameters():
        torch.nn.init.zeros_(p)
    half = torch.tensor([0.5, 0.5])
    batch = Batch(
        (2,),
        obs=torch.ones(2, 1),
        action=torch.tensor([0, 1]),
        log_prob=(half / torch.tensor([1.5, 0.5])).log(),
        advantage=torch.tensor([2.0, -2.0]),
        target=torch.tensor([1.0, 3.0]),
    )
    total, metrics = ppo(model, ent_coef=0.1).loss(batch)
    ln2 = 0.693147
    assert total.item() == pytest.approx(-0.4 + 2.5 - 0.1 * ln2, abs=1e-5)
    expected = {
        "policy_loss": -0.4,
        "value_loss": 5.0,
        "entropy": ln2,
        "clip_fraction": 1.0,
        "clamped_fraction": 0.0,
    }
    assert {k: metrics[k].item() for k in expected} == pytest.approx(expected, abs=1e-5)
    assert metrics["kl"].item() == pytest.approx((0.5 - 0.405465 + -0.5 + ln2) / 2, abs=1e-5)


def test_atoms_give_the_joint_gradient_at_ratio_one() -> None:
    grads = {}
    for ratio in ("joint", "atom"):
        model = TinyModel(1, 3, continuous=True)
        rollout = target_task(model, 16, 3, generator())
        learner = ppo(model, ratio=ratio)
        rows, _ = learner.targets(rollout)
        (batch,) = ppo(model, ratio=ratio, batch_size=16, n_epochs=1).minibatches(rows)
        learner.loss(batch)[0].backward()
        grads[ratio] = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(grads["joint"], grads["atom"])


# -- minibatches --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("rows", "size"), [(65, 64), (64, 64), (1, 64), (7, 1), (130, 64)])
def test_odd_divisions_stay_finite_and_are_spread_evenly(rows: int, size: int) -> None:
    model = TinyModel(3, 3)
    learner = ppo(model, batch_size=size, n_epochs=2)
    before = weights(model)
    rollout = bandit(model, rows, 1, generator(3))
    sizes = [len(batch) for batch in learner.minibatches(learner.targets(rollout)[0])]
    assert sum(sizes) == 2 * rows and max(sizes) - min(sizes) <= 1 and max(sizes) <= size
    metrics = learner.update(rollout).metrics
    assert finite(metrics)
    assert all(bool(p.isfinite().all()) for p in model.parameters()) and not same(before, weights(model))
    # case B27


def test_an_odd_division_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = TinyModel(3, 3)
    learner = ppo(model, batch_size=64, n_epochs=1)
    with caplog.at_level(logging.WARNING, "uniarena"):
        for _ in range(3):
            learner.update(bandit(model, 65, 1, generator()))
    assert [r.getMessage() for r in caplog.records] == [
        "65 rows do not divide into minibatches of 64 (learner.batch_size), so 2 minibatches of 32 to 33 rows are used."
    ]


def test_an_even_division_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = TinyModel(3, 3)
    ppo(model, batch_size=64, n_epochs=1).update(bandit(model, 64, 2, generator()))
    assert not caplog.records


@pytest.mark.parametrize("ratio", ["joint", "atom"])
def test_nine_thousand_action_dimensions_stay_finite(ratio: str) -> None:
    model = TinyModel(1, 9000, continuous=True)
    learner = ppo(model, n_steps=128, ratio=ratio)
    metrics = learner.update(target_task(model, 128, 9000, generator())).metrics
    assert finite(metrics)
    assert metrics["kl"].item() > 0.3, "the figure that a monitor flags"
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    # case B29


def test_a_wild_learning_rate_is_seen_in_kl_and_clip_fraction() -> None:
    model = TinyModel(1, 4, continuous=True)
    learner = ppo(model, learning_rate=3e-2)
    metrics = learner.update(target_task(model, 256, 4, generator())).metrics
    assert metrics["kl"].item() > 0.3 and metrics["clip_fraction"].item() > 0.5
    # case B31


def test_rows_that_are_not_valid_change_nothing() -> None:
    updates = []
    for junk in (0.0, 1e6):
        model = TinyModel(3, 3)
        rollout = bandit(model, 8, 4, generator(2))
        valid = torch.ones(8, 4, dtype=torch.bool)
        valid[3, :2] = False
        rows = rollout.rows.replace(valid=valid, reward=torch.where(valid, rollout.rows.reward, junk))
        assert (
            len(
                ppo(model)
                .minibatches(ppo(model).targets(dataclasses.replace(rollout, rows=rows))[0])
                .__next__()
            )
            == 30
        )
        ppo(model).update(dataclasses.replace(rollout, rows=rows))
        updates.append(weights(model))
    assert same(*updates)


# -- regularisers and schedules -----------------------------------------------------------------------------
def test_target_kl_ends_the_epochs() -> None:
    steps: dict[str, int] = {}
    for name, target in (("free", None), ("bound", 1e-4)):
        model = TinyModel(3, 3)
        learner = ppo(model, learning_rate=1e-2, target_kl=target)
        count: list[LearnStep] = []
        learner.minimize.hook = count.append
        learner.update(bandit(model, 64, 4, generator()))
        steps[name] = len(count)
    assert steps["free"] == 40 and 1 <= steps["bound"] < 10


def test_value_clip_bounds_the_move_of_a_value() -> None:
    moves = {}
    for clip in (None, 0.05):
        model = TinyModel(3, 3)
        rollout = bandit(model, 64, 1, generator())
        before = model.value(rollout.rows.obs).detach()
        ppo(model, value_clip=clip, learning_rate=1e-2, vf_coef=10.0).update(rollout)
        moves[clip] = (model.value(rollout.rows.obs) - before).abs().max().item()
    assert moves[0.05] < 0.5 * moves[None]


def test_schedules_follow_progress() -> None:
    model = TinyModel(3, 3)
    line = ScheduleConfig(start=1.0, end=0.0)
    learner = ppo(
        model, learning_rate=line, clip_range=line, ent_coef=ScheduleConfig(type="cosine", start=0.2)
    )
    learner.set_progress(0.75)
    metrics = learner.update(bandit(model, 64, 1, generator())).metrics
    assert metrics["learning_rate"].item() == 0.25
    assert metrics["clip_range"].item() == 0.25
    assert metrics["ent_coef"].item() == pytest.approx(0.2 * (1 - 0.5**0.5) / 2, abs=1e-6)


def test_entropy_bonus_keeps_the_policy_wide() -> None:
    entropy = {}
    for coef in (0.0, 0.5):
        model = TinyModel(3, 3)
        learner = ppo(model, learning_rate=3e-3, ent_coef=coef)
        for k in range(10):
            metrics = learner.update(bandit(model, 64, 4, generator(k))).metrics
        entropy[coef] = metrics["entropy"].item()
    assert entropy[0.5] > entropy[0.0] + 0.1


def test_metrics_are_scalars_reduced_once() -> None:
    model = TinyModel(3, 3)
    metrics = ppo(model).update(bandit(model, 64, 2, generator())).metrics
    assert set(metrics) == {
        "policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "clamped_fraction",
        "explained_variance",
        "advantage_mean", "advantage_std", "loss", "grad_norm", "learning_rate", "clip_range", "ent_coef",
            "epochs_done",
    }  # fmt: skip
    assert all(value.ndim == 0 and not value.requires_grad for value in metrics.values())
    assert finite(metrics)


def test_a_nan_reward_stops_before_the_step() -> None:
    model = TinyModel(3, 3)
    rollout = bandit(model, 16, 1, generator())
    rollout.rows.reward[3] = torch.nan
    before = weights(model)
    with pytest.raises(NonFiniteError, match="advantage"):
        ppo(model).update(rollout)
    assert same(before, weights(model))


def test_a_rollout_without_log_probs_is_refused() -> None:
    model = TinyModel(3, 3)
    rollout = bandit(model, 4, 1, generator())
    assert PPO.learner.records == ("log_prob",)  # type: ignore[attr-defined]
    with pytest.raises(KeyError, match="log_prob"):
        ppo(model).update(dataclasses.replace(rollout, rows=rollout.rows.without("log_prob")))


@pytest.mark.parametrize("memory", [False, True])
def test_rollouts_made_in_inference_mode_can_be_learned_from(memory: bool) -> None:
    model = MemoryModel(3, 3) if memory else TinyModel(3, 3)
    with torch.inference_mode():
        rollout = remembered(model, 14, 3, generator()) if memory else bandit(model, 16, 4, generator())
    assert finite(ppo(model).update(rollout).metrics)


def test_a_model_without_value_is_refused() -> None:
    model = TinyModel(3, 3)
    model.has_value = False  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="needs a value"):
        ppo(model)


# -- recurrent ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("length", [4, 5, 16, 100])
def test_sequences_recompute_the_log_probs_of_collection(length: int) -> None:
    model = MemoryModel(3, 4)
    rollout = remembered(model, 14, 3, generator())
    learner = ppo(model, sequence_length=length, batch_size=16, n_epochs=1)
    rows, _ = learner.targets(rollout)
    seen = 0
    states = learner.minibatches.states_before(model, rollout)
    for batch in learner.minibatches(rows, states):
        assert batch.shape[0] == min(length, 14)
        out = model(batch.obs, batch.state[0], batch.is_first)
        difference = (out.dist.log_prob(batch.action) - batch.log_prob).abs()[batch.valid]
        assert difference.max().item() < 1e-5
        seen += int(batch.valid.sum())
    assert seen == 14 * 3


def test_a_recurrent_update_trains_through_time() -> None:
    model = MemoryModel(3, 4)
    before = weights(model)
    metrics = (
        ppo(model, sequence_length=7, batch_size=14).update(remembered(model, 14, 3, generator())).metrics
    )
    assert finite(metrics) and metrics["kl"].item() < 1.0
    assert not torch.equal(before["gate"], model.gate)


# -- state --------------------------------------------------------------------------------------------------
def run(learner: Learner, model: torch.nn.Module, first: int, last: int) -> None:
    for k in range(first, last):
        learner.set_progress(k / 8)
        learner.update(bandit(model, 20, 3, generator(k)))
        if k == 1:
            learner.optimizers["optimizer"].scale(0.5)


@pytest.mark.parametrize("preset", [PPO, A2C, IMPALA, APPO], ids=["ppo", "a2c", "impala", "appo"])
def test_updates_continue_bit_for_bit_after_a_load(preset: Any) -> None:
    cfg = preset.Config(learning_rate=ScheduleConfig(start=1e-2, end=1e-3), ent_coef=0.01)

    def build(seed: int) -> tuple[Learner, TinyModel]:
        model = TinyModel(3, 3, seed=seed)
        return preset(model, cfg, Minimize(cfg.max_grad_norm), generator(seed)), model

    straight, through = build(0)
    run(straight, through, 0, 8)
    first, model = build(0)
    run(first, model, 0, 4)
    second, other = build(1)
    second.load_state_dict(first.state_dict())
    run(second, other, 4, 8)
    assert same(weights(through), weights(other))
    assert second.optimizers["optimizer"].lr == straight.optimizers["optimizer"].lr
    assert torch.equal(second.rng.get_state(), straight.rng.get_state())


# -- config -------------------------------------------------------------------------------------------------
def test_presets_are_frozen_defaults_of_one_learner() -> None:
    a2c = A2C.Config()
    assert PPO.learner is A2C.learner is PolicyGradient
    assert (a2c.n_steps, a2c.n_epochs, a2c.batch_size, a2c.gae_lambda, a2c.clip) == (5, 1, None, 1.0, "none")
    assert a2c.optimizer.type == "rmsprop" and PPO.Config().optimizer.type == "adam"
    with pytest.raises(dataclasses.FrozenInstanceError):
        a2c.gamma = 0.5


def test_a_part_of_the_optimizer_section_keeps_the_preset_s_type() -> None:
    cfg = parse(A2C.Config, {"optimizer": {"eps": "1e-3"}, "learning_rate": {"start": 1e-3}}, "learner")
    assert (cfg.optimizer.type, cfg.optimizer.eps) == ("rmsprop", 1e-3)
    assert cfg.learning_rate == ScheduleConfig(type="linear", start=1e-3, end=0.0)
    assert parse(PPO.Config, {"optimizer": {"type": "adamw"}}, "learner").optimizer == OptimizerConfig(
        type="adamw"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("gamma", 1.5), ("gae_lambda", -0.1), ("n_steps", 0), ("batch_size", -1), ("target_kl", 0.0)],
)
def test_impossible_values_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match="expected a number") as caught:
        parse(PPO.Config, {field: value}, "learner")
    assert caught.value.path == f"learner.{field}"
