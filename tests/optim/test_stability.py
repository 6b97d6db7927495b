"""What keeps steps steady: clipping in its forms, normalised gradients, sharpness, accumulation, measured schedules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from uniarena.batch import Batch
from uniarena.config import ConfigError
from uniarena.optim import (
    Derived,
    Minimize,
    NonFiniteError,
    Optimizer,
    OptimizerConfig,
    ScheduleConfig,
    build_optimizer,
    make_schedule,
)
from uniarena.optim.clipping import Clipping, clip_units_, part_of, unit_norm
from uniarena.optim.schedules import CLIP_RANGE, LEARNING_RATE, PENALTY, KLAdaptive, Plateau


class Parts(nn.Module):
    """A policy layer and a value layer of two weights each, all 1."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.value_net = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
        for p in self.parameters():
            nn.init.ones_(p)

    @property
    def moved(self) -> list[list[float]]:
        """How far the weights went down from 1."""
        return [(1.0 - p.detach()).flatten().tolist() for p in self.parameters()]


def loss(model: Parts) -> Any:
    """Gradients (3, 4) of the policy and (6, 8) of the value, whatever the parameters: norms 5, 10, √125 in all."""
    policy, value = torch.tensor([[3.0, 4.0]]), torch.tensor([[6.0, 8.0]])
    return lambda _: ((model.policy.weight * policy).sum() + (model.value_net.weight * value).sum(), {})


def step(bound: Any, lr: float = 1.0, **fields: Any) -> list[list[float]]:
    model = Parts()
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig(type="sgd", **fields), lr)
    Minimize(bound)(loss(model), None, optimizer)
    return model.moved


def close(found: list[list[float]], expected: list[list[float]]) -> bool:
    return [x for row in found for x in row] == pytest.approx([x for row in expected for x in row], rel=1e-4)


# -- clipping ------------------------------------------------------------------------------------------------
def test_each_layer_is_clipped_by_itself() -> None:
    # (3, 4)·1/5 and (6, 8)·1/10
    assert close(step(1.0, clip_by="layer"), [[0.6, 0.8], [0.6, 0.8]])
    assert close(step(7.0, clip_by="layer"), [[3.0, 4.0], [4.2, 5.6]])


def test_parts_have_bounds_of_their_own() -> None:
    assert close(step({"policy": 0.5, "value": 2.0}), [[0.3, 0.4], [1.2, 1.6]])
    assert close(step({"value": 1.0}), [[3.0, 4.0], [0.6, 0.8]]), "a part that is not named is free"
    with pytest.raises(ConfigError, match="no part 'critic'") as caught:
        Minimize({"critic": 1.0})
    assert caught.value.path == "learner.max_grad_norm.critic"


def test_parameters_belong_to_parts_by_name() -> None:
    names = [
        "policy.network.actor.output.weight",
        "policy.network.critic.output.bias",
        "value_net.body.0.weight",
    ]
    assert [part_of(name) for name in [*names, "q.body.layers.0.weight", "temperature.log_alpha"]] == [
        *("policy", "value", "value", "value", "temperature")
    ]


def test_units_are_clipped_in_proportion_to_their_weights() -> None:
    weight = torch.tensor([[3.0, 4.0], [0.0, 0.0]])  # norms 5, and 0 which counts as 1e-3
    gradient = torch.tensor([[0.0, 2.0], [0.0, 2.0]])
    clip_units_(gradient, weight, 0.1)
    assert gradient.flatten().tolist() == pytest.approx([0.0, 0.5, 0.0, 1e-4])
    small = torch.tensor([[0.3, 0.0], [0.0, 1e-5]])
    clip_units_(small, weight, 0.1)
    assert small.flatten().tolist() == pytest.approx([0.3, 0.0, 0.0, 1e-5]), "short gradients stay"


def test_units_of_every_kind_of_layer() -> None:
    assert unit_norm(torch.ones(4)).shape == ()  # a bias
    assert unit_norm(torch.ones(5, 4)).shape == (5, 1)  # [out, in]
    assert unit_norm(torch.ones(8, 3, 2, 2)).shape == (8, 1, 1, 1)  # filters
    assert unit_norm(torch.ones(2, 3, 7)).shape == (2, 1, 7)  # an ensemble's columns
    assert unit_norm(torch.ones(2, 1, 7)).shape == (2, 1, 1)  # an ensemble's biases


def test_agc_through_a_step() -> None:
    # ‖w‖ = √2 in each row: bounds 0.1·√2; directions (0.6, 0.8)
    bound = 0.1 * math.sqrt(2.0)
    assert close(step(None, agc=0.1), [[0.6 * bound, 0.8 * bound]] * 2)


def test_a_quantile_of_past_norms() -> None:
    clip = Clipping(quantile=0.5, window=10)
    for norm in range(1, 11):  # the first ten only fill the window
        gradients = {"w": torch.tensor([float(norm)])}
        clip(gradients, float(norm), None, None)
        assert gradients["w"].item() == norm
    gradients = {"w": torch.tensor([100.0])}
    clip(gradients, 100.0, None, None)
    assert gradients["w"].item() == pytest.approx(5.5)  # the median of 1 … 10
    assert clip.norms == [*map(float, range(2, 11)), 100.0], "the norm before clipping, the oldest forgotten"
    gradients = {"w": torch.tensor([3.0])}
    clip(gradients, 3.0, None, None)
    assert gradients["w"].item() == 3.0


def test_normalised_gradients_have_length_one() -> None:
    size = math.sqrt(125.0)
    assert close(step(None, normalize=True), [[3 / size, 4 / size], [6 / size, 8 / size]])
    assert close(step(0.5, normalize=True), [[1.5 / size, 2 / size], [3 / size, 4 / size]])


# -- sharpness -----------------------------------------------------------------------------------------------
def test_sam_by_hand() -> None:
    # f = x² + 2y² at (3, 1): gradient (6, 4), norm √52; ρ = 0.1·√52 climbs by (0.6, 0.4) to (3.6, 1.4),
    # where the gradient is (7.2, 5.6). SGD with rate 0.1 from (3, 1): (2.28, 0.44).
    w = nn.Parameter(torch.tensor([3.0, 1.0]))
    cfg = OptimizerConfig(type="sam", base="sgd", rho=0.1 * math.sqrt(52.0))
    optimizer = build_optimizer([("w", w)], cfg, 0.1)
    assert isinstance(optimizer.torch, torch.optim.SGD)
    calls = []

    def f(_: None) -> tuple[Tensor, dict[str, Tensor]]:
        calls.append(w.tolist())
        return w[0] ** 2 + 2.0 * w[1] ** 2, {}

    metrics = Minimize()(f, None, optimizer)
    assert calls[1] == pytest.approx([3.6, 1.4])
    assert w.tolist() == pytest.approx([2.28, 0.44])
    assert (metrics["loss"].item(), metrics["grad_norm"].item()) == (11.0, pytest.approx(math.sqrt(52.0)))


@pytest.mark.parametrize("base", ["adam", "adamw", "rmsprop", "sgd"])
def test_sam_wraps_every_optimiser(base: str) -> None:
    def train(kind: OptimizerConfig) -> Tensor:
        w = nn.Parameter(torch.tensor([3.0, 1.0]))
        optimizer = build_optimizer([("w", w)], kind, 0.05)
        for _ in range(3):
            Minimize()(lambda _: ((w**4).sum(), {}), None, optimizer)
        return w.detach()

    plain, sharp = train(OptimizerConfig(type=base)), train(OptimizerConfig(type="sam", base=base, rho=0.5))
    tiny = train(OptimizerConfig(type="sam", base=base, rho=1e-6))
    assert torch.allclose(tiny, plain, rtol=1e-4)
    assert not torch.allclose(sharp, plain, rtol=1e-4) or base in (
        "adam",
        "adamw",
    )  # Adam's first steps are signs


def test_the_second_pass_draws_what_the_first_one_drew() -> None:
    rng, seen = torch.Generator().manual_seed(3), []
    w = nn.Parameter(torch.ones(2))

    def noisy(_: None) -> tuple[Tensor, dict[str, Tensor]]:
        noise = torch.randn(2, generator=rng)
        seen.append(noise)
        return ((w + noise) ** 2).sum(), {}

    minimize = Minimize()
    minimize.rng = rng
    optimizer = build_optimizer([("w", w)], OptimizerConfig(type="sam"), 0.1)
    minimize(noisy, None, optimizer)
    minimize(noisy, None, optimizer)
    assert (
        torch.equal(seen[0], seen[1]) and torch.equal(seen[2], seen[3]) and not torch.equal(seen[0], seen[2])
    )


def test_a_second_pass_that_is_not_finite_leaves_the_parameters_where_they_were() -> None:
    w = nn.Parameter(torch.tensor([0.9]))
    optimizer = build_optimizer([("w", w)], OptimizerConfig(type="sam", base="sgd", rho=0.5), 0.1)
    before = w.detach().clone()

    def cliff(_: None) -> tuple[Tensor, dict[str, Tensor]]:
        return (w / (w < 1.0)).sum(), {}  # beyond 1 it is infinite

    with pytest.raises(NonFiniteError):
        Minimize()(cliff, None, optimizer)
    assert torch.equal(w.detach(), before)


def test_sam_takes_both_passes_of_gradients_written_by_hand() -> None:
    w = nn.Parameter(torch.tensor([3.0]))

    def square(_: None) -> tuple[Derived, dict[str, Tensor]]:
        def backward() -> None:
            w.grad = 2.0 * w.detach()

        return Derived(w.detach().square().sum(), backward), {}

    optimizer = build_optimizer([("w", w)], OptimizerConfig(type="sam", base="sgd", rho=0.5), 0.1)
    Minimize()(square, None, optimizer)
    assert w.item() == pytest.approx(3.0 - 0.1 * 2.0 * 3.5)


@pytest.mark.parametrize(("fields", "key"), [({"rho": 0.1}, "rho"), ({"base": "sgd"}, "base")])
def test_settings_of_sam_belong_to_sam(fields: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match="belongs to sam") as caught:
        build_optimizer(Parts().named_parameters(), OptimizerConfig(**fields), 0.1)
    assert caught.value.path == f"learner.optimizer.{key}"


# -- accumulation --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sequences", [False, True])
def test_a_batch_in_parts_gives_the_gradient_of_the_whole(sequences: bool) -> None:
    shape = (3, 7) if sequences else (7,)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, 2, generator=generator)
    valid = torch.rand(shape, generator=generator) > 0.3
    valid[..., ::2] = True
    rows: list[int] = []

    def gradients(parts: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        model = Parts()
        optimizer = build_optimizer(
            model.named_parameters(), OptimizerConfig(type="sgd", accumulate=parts), 1.0
        )

        def mean_square(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
            rows.append(batch.shape[-1])
            error = (model.policy(batch.x) - 3.0).squeeze(-1).square()
            total = (error * batch.valid).sum() / batch.valid.sum()
            return total, {"seen": error.detach().flatten() if not sequences else total.detach()}

        metrics = Minimize()(mean_square, Batch(shape, x=x, valid=valid), optimizer)
        return [p.detach() for p in model.parameters()], metrics

    whole, figures = gradients(1)
    parts, same = gradients(3)
    assert rows[1:] == [2, 2, 3]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, parts, strict=True))
    assert all(torch.allclose(figures[name], same[name], atol=1e-6) for name in figures)


def test_what_is_no_batch_stays_whole() -> None:
    model = Parts()
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig(type="sgd", accumulate=4), 1.0)
    Minimize()(loss(model), None, optimizer)
    assert close(model.moved, [[3.0, 4.0], [6.0, 8.0]])


# -- schedules -----------------------------------------------------------------------------------------------
def test_warm_restarts_and_exponential_by_hand() -> None:
    restarts = make_schedule(ScheduleConfig(type="warm_restarts", start=1.0, cycles=2))
    assert [restarts(p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)] == pytest.approx([1.0, 0.5, 1.0, 0.5, 0.0])
    falling = make_schedule(ScheduleConfig(type="exponential", start=1.0, end=0.01))
    assert [falling(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.1, 0.01])
    with pytest.raises(ConfigError, match="above 0"):
        ScheduleConfig(type="exponential", start=1.0)


def adaptive(rule: Any, start: float = 1.0, **fields: Any) -> KLAdaptive:
    return KLAdaptive(ScheduleConfig(type="kl_adaptive", start=start, **fields), rule, 0.01, "learner.x")


def after(value: KLAdaptive, *kls: float) -> float:
    for kl in kls:
        value.see({"epoch_kl": torch.tensor(kl, dtype=torch.float64)})
    return value.value


def test_a_learning_rate_follows_the_kl() -> None:
    assert after(adaptive(LEARNING_RATE), 0.004) == 1.5
    assert after(adaptive(LEARNING_RATE), 0.021) == pytest.approx(1 / 1.5)
    assert after(adaptive(LEARNING_RATE), 0.005, 0.02) == 1.0, "nothing from half of the target to twice it"
    assert after(adaptive(LEARNING_RATE), *[0.0] * 20) == 10.0
    assert after(adaptive(LEARNING_RATE, bounds=(0.5, 2.0)), *[1.0] * 20) == 0.5


def test_a_clip_range_grows_below_half_of_the_target_and_shrinks_at_it() -> None:
    assert after(adaptive(CLIP_RANGE, 0.2), 0.0049) == pytest.approx(0.24)
    assert after(adaptive(CLIP_RANGE, 0.2), 0.01) == pytest.approx(0.2 / 1.2)
    assert after(adaptive(CLIP_RANGE, 0.2), 0.005, 0.0099) == 0.2
    assert after(adaptive(CLIP_RANGE, 0.2), *[1.0] * 50) == pytest.approx(0.05)
    assert after(adaptive(CLIP_RANGE, 0.2), *[0.0] * 50) == pytest.approx(0.4)


def test_the_penalty_of_schulman_doubles_and_halves() -> None:
    assert after(adaptive(PENALTY), 0.0151) == 2.0  # above 1.5 × the target
    assert after(adaptive(PENALTY), 0.0066) == 0.5  # below the target / 1.5
    assert after(adaptive(PENALTY), 0.0149, 0.0068) == 1.0


def test_a_plateau_by_hand() -> None:
    plateau = Plateau(ScheduleConfig(type="plateau", start=1.0, end=0.3, patience=2, metric="score"))
    seen = []
    for score in (1.0, 2.0, 2.0, 1.5, math.nan, 3.0, 1.0, 1.0, 1.0, 1.0):
        plateau.see({"score": score})
        seen.append(plateau.value)
    assert seen == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.3, 0.3, 0.3]
    plateau.see({"other": 1.0})
    assert plateau.waited == 0


def test_a_rate_that_follows_the_kl_needs_a_learner_that_measures_it() -> None:
    rate = ScheduleConfig(type="kl_adaptive", start=1e-3, target_kl=0.01)
    named = list(Parts().named_parameters())
    with pytest.raises(ConfigError, match="this learner"):
        build_optimizer(named, OptimizerConfig(), rate)
    optimizer = build_optimizer(named, OptimizerConfig(), rate, gives_kl=True)
    optimizer.follow({"epoch_kl": 0.0})
    assert optimizer.lr == optimizer.groups[0]["lr"] == 1.5e-3
    with pytest.raises(ConfigError, match="no KL to keep"):
        build_optimizer(
            named, OptimizerConfig(), ScheduleConfig(type="kl_adaptive", start=1.0), gives_kl=True
        )
    with pytest.raises(ConfigError, match="does not follow"):
        make_schedule(rate)


# -- state ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fields",
    [
        {"type": "sam", "rho": 0.1},
        {"type": "sam", "base": "rmsprop", "agc": 0.05, "normalize": True},
        {"clip_quantile": 0.5, "clip_window": 10},
        {"lr": ScheduleConfig(type="plateau", start=0.1, patience=1, metric="score")},
        {"lr": ScheduleConfig(type="kl_adaptive", start=0.1, target_kl=0.01)},
    ],
)
def test_saved_state_continues_bit_for_bit(fields: dict[str, Any]) -> None:
    cfg = OptimizerConfig(**fields)

    def make(model: Parts) -> Optimizer:
        return build_optimizer(model.named_parameters(), cfg, 0.1, gives_kl=True)

    def run(model: Parts, optimizer: Optimizer, first: int, last: int) -> None:
        for k in range(first, last):
            scale = 1.0 + (k * 7) % 5
            Minimize(0.5)(
                lambda _, s=scale: (sum((p**2).sum() for p in model.parameters()) * s, {}), None, optimizer
            )
            optimizer.follow({"score": -abs(k - 3), "epoch_kl": 0.001 * k})

    through, broken, fresh = Parts(), Parts(), Parts()
    run(through, make(through), 0, 24)
    first = make(broken)
    run(broken, first, 0, 12)
    fresh.load_state_dict(broken.state_dict())
    second = make(fresh)
    second.load_state_dict(first.state_dict())
    assert second.lr == first.lr == second.groups[0]["lr"]
    run(broken, first, 12, 13)  # the original may go on: nothing is shared
    run(fresh, second, 12, 24)
    assert fresh.moved == through.moved
