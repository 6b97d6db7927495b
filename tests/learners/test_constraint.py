"""What holds a policy gradient back: clip ranges and penalties that follow the KL, reactions, the end of epochs."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from gymnasium import spaces

from tests.learners.fakes import TinyModel, bandit
from tests.learners.test_policy_gradient import generator, ppo, weights
from tests.learners.test_with_networks import ACTIONS, build, experience
from uniarena.batch import Batch
from uniarena.config import ConfigError
from uniarena.learners.on_policy.config import PolicyGradientConfig
from uniarena.learners.on_policy.constraint import PolicyConstraint
from uniarena.learners.on_policy.presets import TRPO
from uniarena.optim import LearnStep, OptimizerConfig, ScheduleConfig, build_optimizer
from uniarena.policies.distributions import Categorical

FOLLOWS = ScheduleConfig(type="kl_adaptive", start=0.2, target_kl=0.01)


def optimizer(lr: Any = 0.1) -> Any:
    pair = ("w", torch.nn.Parameter(torch.ones(1)))
    return build_optimizer([pair], OptimizerConfig(type="sgd"), lr, gives_kl=True)


def figures(kl: float, loss: float = 0.0) -> dict[str, torch.Tensor]:
    return {"kl": torch.tensor(kl), "loss": torch.tensor(loss)}


def constraint(**fields: Any) -> PolicyConstraint:
    return PolicyConstraint(PolicyGradientConfig(**fields))


# -- the parts -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("reaction", "stops", "clip", "rate"),
    [
        ("warn", [False, False, False], 0.2, 0.1),
        ("stop_epoch", [False, True, True], 0.2, 0.1),
        ("shrink_clip", [False, False, False], 0.16, 0.1),
        ("lower_lr", [False, False, False], 0.2, 0.1 / 1.5),
    ],
)
def test_reactions_to_a_high_kl(reaction: str, stops: list[bool], clip: float, rate: float) -> None:
    own, steps = constraint(on_high_kl=reaction), optimizer()
    own.begin()
    # 1.5 × 0.2 = 0.3: the first is not above it; a second time in one update changes nothing more
    assert [own.after_step(figures(kl), 0.2, steps) for kl in (0.29, 0.31, 5.0)] == stops
    assert own.clip_range(0.0) == pytest.approx(clip) and steps.lr == pytest.approx(rate)


def test_reactions_have_a_floor() -> None:
    own, rates = constraint(on_high_kl="shrink_clip"), constraint(on_high_kl="lower_lr")
    steps = optimizer()
    for _ in range(60):
        for one in (own, rates):
            one.begin()
            one.after_step(figures(9.0), 0.2, steps)
    assert own.clip_range(0.0) == pytest.approx(0.02)
    assert 0.01 <= steps.factor <= 0.015


def test_a_clip_range_and_a_penalty_move_once_an_update_and_a_rate_once_an_epoch() -> None:
    rate = ScheduleConfig(type="kl_adaptive", start=0.1, target_kl=0.01)
    own = constraint(
        clip_range=FOLLOWS, kl_coef=ScheduleConfig(type="kl_adaptive", start=1.0), target_kl=0.01
    )
    rates, steps = constraint(learning_rate=rate), optimizer(rate)
    for one in (own, rates):
        one.begin()
        for last in (False, True):
            assert not one.after_epoch(steps, last, torch.tensor(0.002))
    assert own.clip_range(0.0) == pytest.approx(0.24) and own.kl_coef(0.0) == 0.5
    assert steps.lr == pytest.approx(0.1 * 1.5**4)  # both constraints told the same optimiser, twice each


def test_epochs_end_on_a_loss_that_rises() -> None:
    own, steps = constraint(stop_on_loss="rising"), optimizer()
    own.begin()
    ends = []
    for loss in (1.0, 0.5, 0.6, 0.7):
        own.after_step(figures(0.0, loss), 0.2, steps)
        ends.append(own.after_epoch(steps, False))
    assert ends == [False, False, False, True] and own.epochs == 4
    own.begin()
    own.after_step(figures(0.0, 0.9), 0.2, steps)
    assert not own.after_epoch(steps, False), "each update is judged by itself"


def test_what_moved_is_saved() -> None:
    fields = {
        "clip_range": FOLLOWS,
        "kl_coef": ScheduleConfig(type="kl_adaptive", start=1.0),
        "target_kl": 0.01,
    }
    one, other = constraint(**fields), constraint(**fields)
    one.begin()
    one.shrunk = 0.5
    one.after_epoch(optimizer(), True, torch.tensor(0.0))
    other.load_state_dict(one.state_dict())
    assert (other.clip_range(0.0), other.kl_coef(0.0)) == (pytest.approx(0.12), 0.5)


def test_a_checkpoint_from_before_there_was_a_constraint_loads() -> None:
    learner, _ = build(spaces.Discrete(4))
    state = {k: v for k, v in learner.state_dict().items() if not k.startswith("constraint")}
    learner.constraint.shrunk = 0.5
    learner.load_state_dict(state)
    assert learner.constraint.shrunk == 0.5


def test_a_clip_range_that_follows_needs_a_target() -> None:
    with pytest.raises(ConfigError, match="no KL to keep") as caught:
        constraint(clip_range=ScheduleConfig(type="kl_adaptive", start=0.2))
    assert caught.value.path == "learner.clip_range.target_kl"
    with pytest.raises(ConfigError, match="does not follow") as caught:
        constraint(clip_range=ScheduleConfig(type="plateau", start=0.2))
    assert caught.value.path == "learner.clip_range"


# -- through the learner -------------------------------------------------------------------------------------
def test_the_penalty_is_added_to_the_loss() -> None:
    # the batch of test_loss_by_hand: ratios 1.5 and 0.5, mean KL estimate (0.5 − ln 1.5 − 0.5 + ln 2)/2
    model = TinyModel(1, 2)
    for p in model.parameters():
        torch.nn.init.zeros_(p)
    batch = Batch(
        (2,),
        obs=torch.ones(2, 1),
        action=torch.tensor([0, 1]),
        log_prob=(0.5 / torch.tensor([1.5, 0.5])).log(),
        advantage=torch.tensor([2.0, -2.0]),
        target=torch.tensor([1.0, 3.0]),
    )
    plain, _ = ppo(model, clip="none").loss(batch)
    held, metrics = ppo(model, clip="none", kl_coef=3.0).loss(batch)
    kl = (math.log(2.0) - math.log(1.5)) / 2
    assert metrics["kl"].item() == pytest.approx(kl, abs=1e-6)
    assert (held - plain).item() == pytest.approx(3.0 * kl, abs=1e-5)


@pytest.mark.parametrize("reaction", ["stop_epoch", "shrink_clip", "lower_lr"])
def test_a_wild_update_is_answered(reaction: str) -> None:
    model = TinyModel(3, 3)
    learner = ppo(model, learning_rate=0.3, on_high_kl=reaction)
    steps: list[LearnStep] = []
    learner.minimize.hook = steps.append
    metrics = learner.update(bandit(model, 64, 4, generator())).metrics
    if reaction == "stop_epoch":
        assert len(steps) < 40 and metrics["epochs_done"].item() < 10
    elif reaction == "shrink_clip":
        assert metrics["clip_range"].item() == pytest.approx(0.16)
    else:
        assert metrics["learning_rate"].item() == pytest.approx(0.2)


def test_a_rate_that_follows_sees_what_a_single_step_did() -> None:
    rate = ScheduleConfig(type="kl_adaptive", start=0.3, target_kl=0.01)
    model = TinyModel(3, 3)
    learner = ppo(model, learning_rate=rate, n_epochs=1, batch_size=None)
    metrics = learner.update(bandit(model, 64, 4, generator())).metrics
    assert metrics["kl"].item() == pytest.approx(0.0, abs=1e-6), "measured before the step"
    assert metrics["learning_rate"].item() == pytest.approx(0.2)


def test_the_entropy_is_brought_to_its_target() -> None:
    learner, model = build(
        spaces.Discrete(4), ent_coef="auto", ent_coef_init=0.5, ent_coef_learning_rate=0.05
    )
    assert learner.entropy.wanted == pytest.approx(0.5 * math.log(4.0))
    coefs = [float(learner.update(experience(model, 32, 2, k)).metrics["ent_coef"]) for k in range(3)]
    assert coefs == sorted(coefs, reverse=True) and coefs[-1] < 0.45  # near ln 4: the price of entropy falls
    eager, model = build(spaces.Discrete(4), ent_coef="auto", target_entropy=2.0, ent_coef_learning_rate=0.05)
    before = eager.ent_coef
    eager.update(experience(model, 32, 2, 0))
    assert eager.ent_coef > before  # 2 nats cannot be had: it grows, to its bound
    with pytest.raises(ConfigError, match="Discrete"):
        build(ACTIONS["box"], ent_coef="auto")


@pytest.mark.parametrize("kind", ["running", "popart"])
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_values_learn_returns_of_any_size(kind: str, scale: float) -> None:
    model = TinyModel(3, 3)
    learner = ppo(model, learning_rate=1e-2, normalize_return=kind, return_decay=0.5)
    for k in range(15):
        rollout = bandit(model, 64, 4, generator(k))
        reward = scale * (2.0 + rollout.rows.obs[..., 0])  # by the symbol: 3 or 2
        rows = rollout.rows.replace(reward=reward)
        metrics = learner.update(type(rollout)(rows, rollout.start, rollout.last, rollout.ended)).metrics
    value = model.value(torch.eye(3))
    assert (value / scale).tolist() == pytest.approx([3.0, 2.0, 2.0], abs=0.15)
    assert metrics["explained_variance"].item() > 0.8 and metrics["value_loss"].item() < 0.5


def test_scaled_values_give_the_same_loss_in_units_of_their_deviation() -> None:
    model = TinyModel(3, 3)
    learner = ppo(model, normalize_return="popart", value_clip=0.1)
    rows, _ = learner.targets(bandit(model, 16, 2, generator()))
    (batch,) = rows.select_valid().minibatches(32, 1, generator())
    own, _ = learner.loss.value(model.value(batch.obs) + 0.3, batch)
    unit = float(learner.returns.std)
    plain, _ = ppo(TinyModel(3, 3), value_clip=0.1).loss.value(model.value(batch.obs) + 0.3, batch)
    assert own.item() == pytest.approx(plain.item() / unit**2, rel=1e-4)


STATES: list[dict[str, Any]] = [
    {"clip_range": FOLLOWS, "kl_coef": ScheduleConfig(type="kl_adaptive", start=1.0, target_kl=0.01)},
    {"on_high_kl": "shrink_clip", "learning_rate": 0.1, "stop_on_loss": "both"},
    {"ent_coef": "auto", "normalize_return": "popart", "target_entropy": 1.0},
    {
        "learning_rate": ScheduleConfig(type="kl_adaptive", start=1e-3, target_kl=0.01),
        "normalize_return": "running",
    },
    {
        "optimizer": OptimizerConfig(type="sam", accumulate=2, clip_quantile=0.5),
        "max_grad_norm": {"policy": 0.1},
    },
]


@pytest.mark.parametrize("fields", STATES, ids=lambda fields: "-".join(fields))
def test_saved_state_continues_bit_for_bit(fields: dict[str, Any]) -> None:
    def make() -> tuple[Any, Any]:
        return build(spaces.Discrete(4), batch_size=16, n_epochs=3, **fields)

    through, model = make()
    broken, other = make()
    for k in range(4):
        through.update(experience(model, 16, 2, k))
    for k in range(2):
        broken.update(experience(other, 16, 2, k))
    fresh, third = make()
    fresh.load_state_dict(broken.state_dict())
    for k in range(2, 4):
        fresh.update(experience(third, 16, 2, k))
    mine, theirs = weights(model), weights(third)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert (fresh.clip_range, fresh.ent_coef, fresh.kl_coef) == (
        *(through.clip_range, through.ent_coef, through.kl_coef),
    )


# -- natural steps -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["discrete", "multi_discrete", "multi_binary", "box", "hybrid"])
def test_a_natural_step_stays_within_its_region_and_gains(name: str) -> None:
    learner, model = build(ACTIONS[name], preset=TRPO, n_epochs=2)
    rollout = experience(model, 64, 2, 1)
    rows, _ = learner.targets(rollout)
    (batch,) = rows.select_valid().minibatches(128, 1, generator())
    with torch.no_grad():
        before = copy.deepcopy(model(batch.obs).dist)
    first = learner.loss.policy(before, batch)[0].item()
    metrics = learner.update(rollout).metrics
    after = model(batch.obs).dist
    assert 0.0 < before.kl(after).mean().item() <= 0.01
    assert learner.loss.policy(after, batch)[0].item() < first
    assert 0.0 < metrics["step_share"].item() <= 1.0 and metrics["value_loss"].item() > 0.0


def test_a_natural_step_is_the_natural_gradient() -> None:
    # Softmax of logits θ, all rows alike: F = diag(p) − ppᵀ, here ½·[[½, −½], [−½, ½]] at θ = 0; advantage +1
    # for action 0 and −1 for 1, half each: g = (−½, ½). The step goes along (1, −1)/√2 until ½ xᵀFx = δ:
    # with x = s·(1, −1), ½·s²·(½ + ½ + … ) = ½ s², so s = √(2δ) where damping is 0.
    from uniarena.optim.natural import NaturalGradient, TrustRegion

    theta = torch.nn.Parameter(torch.zeros(2))
    old = Categorical(torch.zeros(1, 2))
    advantage = torch.tensor([1.0, -1.0])

    def loss() -> torch.Tensor:
        return -(0.5 * (theta.log_softmax(-1) - math.log(0.5)).exp() * advantage).sum()

    natural = NaturalGradient([theta])
    loss().backward()
    natural.region = TrustRegion(
        lambda: old.kl(Categorical(theta[None])).mean(), loss, max_kl=1e-4, cg_steps=2, damping=0.0
    )
    natural.step()
    s = math.sqrt(2e-4) * natural.taken
    assert theta.tolist() == pytest.approx([s, -s], rel=1e-3)
    with pytest.raises(RuntimeError, match="region"):
        natural.step()


def test_a_step_that_gains_nothing_is_not_taken() -> None:
    learner, model = build(spaces.Discrete(4), preset=TRPO)
    before = {k: v for k, v in weights(model).items() if k.startswith("policy")}
    rollout = experience(model, 32, 2, 1)
    learner.loss.policy = lambda dist, batch, own=learner.loss.policy: (
        own(dist, batch)[0] * 0.0,
        own(dist, batch)[1],
    )
    metrics = learner.update(rollout).metrics
    assert metrics["step_share"].item() == 0.0
    assert all(torch.equal(weights(model)[name], x) for name, x in before.items())


def test_trpo_continues_bit_for_bit_and_says_what_it_needs() -> None:
    through, model = build(spaces.Discrete(4), preset=TRPO, n_epochs=2)
    broken, other = build(spaces.Discrete(4), preset=TRPO, n_epochs=2)
    for k in range(3):
        through.update(experience(model, 16, 2, k))
    broken.update(experience(other, 16, 2, 0))
    fresh, third = build(spaces.Discrete(4), preset=TRPO, n_epochs=2)
    fresh.load_state_dict(broken.state_dict())
    for k in (1, 2):
        fresh.update(experience(third, 16, 2, k))
    assert all(torch.equal(a, weights(third)[name]) for name, a in weights(model).items())
    with pytest.raises(ConfigError, match="target_kl"):
        build(spaces.Discrete(4), preset=TRPO, target_kl=None)
