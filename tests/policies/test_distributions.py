"""Formulas against torch.distributions and against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as reference

from uniarena.policies.continuous import Beta, DiagGaussian, SquashedGaussian
from uniarena.policies.distributions import (
    Categorical,
    JointDistribution,
    MultiBernoulli,
    MultiCategorical,
    mask_logits,
)
from uniarena.policies.noise import gumbel, logistic, normal

N, D = 16, 3


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(a, b.to(a.dtype), rtol=tolerance, atol=tolerance)


def test_categorical_agrees_with_torch(rng):
    logits, other = torch.randn(2, N, 5, generator=rng)
    ours, theirs = Categorical(logits), reference.Categorical(logits=logits)
    action = ours.sample(rng)
    assert action.dtype == torch.int64 and action.shape == (N,)
    close(ours.log_prob(action), theirs.log_prob(action))
    close(ours.entropy(), theirs.entropy())
    close(ours.kl(Categorical(other)), reference.kl_divergence(theirs, reference.Categorical(logits=other)))
    assert ours.atom_log_prob(action).shape == (N, 1)
    assert torch.equal(ours.mode(), logits.argmax(-1))


def test_categorical_by_hand():
    dist = Categorical(torch.log(torch.tensor([[0.5, 0.25, 0.25]])))
    assert dist.log_prob(torch.tensor([1])).item() == pytest.approx(math.log(0.25))
    assert dist.entropy().item() == pytest.approx(1.5 * math.log(2.0))
    uniform = Categorical(torch.zeros(1, 3))
    assert dist.kl(uniform).item() == pytest.approx(math.log(3.0) - 1.5 * math.log(2.0))


def test_gumbel_max_samples_with_the_right_frequencies(rng):
    p = torch.tensor([0.6, 0.3, 0.1, 0.0])
    noise = gumbel((200_000, 4), rng, torch.device("cpu"))
    assert noise.isfinite().all()
    counts = torch.bincount(
        Categorical(p.log().clamp(min=-1e30).expand(200_000, 4)).sample(noise=noise), minlength=4
    )
    close(counts / 200_000, p, 5e-3)


def test_a_mask_reaches_sample_log_prob_entropy_kl_and_mode(rng):
    logits = torch.tensor([[5.0, 1.0, 0.0]]).expand(1000, 3)
    mask = torch.tensor([[0, 1, 1]], dtype=torch.int8).expand(1000, 3)
    dist = Categorical(logits, mask)
    assert set(dist.sample(rng).tolist()) == {1, 2}
    assert (dist.mode() == 1).all()
    legal = reference.Categorical(logits=torch.tensor([[1.0, 0.0]]))
    close(dist.log_prob(torch.ones(1000))[:1], legal.log_prob(torch.tensor([0])))
    close(dist.entropy()[:1], legal.entropy())
    other = Categorical(torch.zeros(1000, 3), mask)
    close(dist.kl(other)[:1], reference.kl_divergence(legal, reference.Categorical(logits=torch.zeros(1, 2))))
    assert dist.log_prob(torch.zeros(1000)).max() < -1e30


def test_a_mask_without_a_legal_action_reads_as_all_legal():
    logits = torch.randn(2, 3)
    mask = torch.tensor([[False, False, False], [True, False, True]])
    assert torch.equal(mask_logits(logits, mask)[0], logits[0])
    assert mask_logits(logits, mask)[1, 1] == torch.finfo(torch.float32).min


def test_gradients_through_a_masked_distribution_are_finite():
    logits = torch.tensor([[30.0, -30.0, 0.0]], requires_grad=True)
    dist = Categorical(logits, torch.tensor([[True, True, False]]))
    (
        dist.entropy() + dist.log_prob(torch.tensor([1])) + dist.kl(Categorical(torch.zeros(1, 3)))
    ).sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all() and logits.grad[0, 2] == 0


def test_multi_categorical_is_a_product_of_categoricals(rng):
    logits = torch.randn(N, 2, 3, generator=rng)
    logits[:, 0, 2] = torch.finfo(torch.float32).min  # the first choice has two classes only
    ours = MultiCategorical(logits, (2,))
    parts = [reference.Categorical(logits=logits[:, 0, :2]), reference.Categorical(logits=logits[:, 1])]
    action = ours.sample(rng)
    assert action.shape == (N, 2) and action[:, 0].max() <= 1
    close(
        ours.atom_log_prob(action),
        torch.stack([p.log_prob(a) for p, a in zip(parts, action.T, strict=True)], -1),
    )
    close(ours.log_prob(action), ours.atom_log_prob(action).sum(-1))
    close(ours.entropy(), sum(part.entropy() for part in parts))
    flat = MultiCategorical(torch.zeros_like(logits).masked_fill(logits < -1e30, -1e38), (2,))
    uniform = [reference.Categorical(logits=torch.zeros(N, n)) for n in (2, 3)]
    close(ours.kl(flat), sum(reference.kl_divergence(p, u) for p, u in zip(parts, uniform, strict=True)))


def test_multi_bernoulli_agrees_with_torch(rng):
    logits, other = 2 * torch.randn(2, N, D, generator=rng)
    ours, theirs = MultiBernoulli(logits, (D,)), reference.Bernoulli(logits=logits)
    action = ours.sample(rng)
    assert action.dtype == torch.int8
    close(ours.atom_log_prob(action), theirs.log_prob(action.float()))
    close(ours.entropy(), theirs.entropy().sum(-1))
    close(
        ours.kl(MultiBernoulli(other, (D,))),
        reference.kl_divergence(theirs, reference.Bernoulli(logits=other)).sum(-1),
    )
    many = MultiBernoulli(torch.full((100_000, 1), math.log(3.0)), (1,)).sample(rng)
    assert many.float().mean().item() == pytest.approx(0.75, abs=5e-3)
    assert logistic((100_000,), rng, torch.device("cpu")).isfinite().all()


def test_diagonal_gaussian_agrees_with_torch(rng):
    mean, log_std, mean2, log_std2 = torch.randn(4, N, D, generator=rng)
    ours = DiagGaussian(mean, log_std, (D,))
    theirs = reference.Independent(reference.Normal(mean, log_std.exp()), 1)
    other = reference.Independent(reference.Normal(mean2, log_std2.exp()), 1)
    action, log_prob = ours.sample_with_log_prob(rng)
    close(log_prob, theirs.log_prob(action))
    close(ours.entropy(), theirs.entropy())
    close(ours.kl(DiagGaussian(mean2, log_std2, (D,))), reference.kl_divergence(theirs, other))
    assert torch.equal(ours.mode(), mean)


def test_diagonal_gaussian_by_hand():
    dist = DiagGaussian(torch.tensor([[1.0, 0.0]]), torch.tensor([0.0, math.log(2.0)]), (2,))
    expected = [-0.5 * math.log(2 * math.pi) - 0.5, -0.5 * math.log(2 * math.pi) - math.log(2.0) - 0.5]
    atoms = dist.atom_log_prob(torch.tensor([[2.0, 2.0]]))
    close(atoms, torch.tensor([expected]))
    assert dist.log_prob(torch.tensor([[2.0, 2.0]])).item() == pytest.approx(sum(expected))
    assert dist.rsample(noise=torch.tensor([[1.0, -1.0]])).tolist() == [[2.0, -2.0]]


def _squashed(mean: torch.Tensor, log_std: torch.Tensor) -> tuple[SquashedGaussian, reference.Distribution]:
    middle, half = torch.tensor([0.0, 1.0, -2.0]), torch.tensor([1.0, 3.0, 0.5])
    transforms = [reference.TanhTransform(cache_size=1), reference.AffineTransform(middle, half)]
    theirs = reference.TransformedDistribution(reference.Normal(mean, log_std.exp()), transforms)
    return SquashedGaussian(mean, log_std, middle, half, (D,)), reference.Independent(theirs, 1)


def test_squashed_gaussian_agrees_with_torch(rng):
    mean, log_std = 0.5 * torch.randn(2, N, D, generator=rng)
    ours, theirs = _squashed(mean, log_std)
    action, log_prob = ours.rsample_with_log_prob(rng)
    close(log_prob, theirs.log_prob(action), 1e-3)
    close(ours.log_prob(action), theirs.log_prob(action), 1e-3)
    assert (action - torch.tensor([0.0, 1.0, -2.0])).abs().le(torch.tensor([1.0, 3.0, 0.5])).all()


def test_squashed_gaussian_by_hand():
    """Standard normal u = 0 through 3·tanh: density 1/sqrt(2π) over slope 3."""
    dist = SquashedGaussian(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1), torch.full((1,), 3.0), (1,))
    assert dist.log_prob(torch.zeros(1, 1)).item() == pytest.approx(
        -0.5 * math.log(2 * math.pi) - math.log(3.0)
    )
    assert dist.mode().item() == 0.0


def test_squashed_gaussian_is_finite_where_tanh_saturates():
    mean = torch.tensor([[20.0, -20.0]], requires_grad=True)
    dist = SquashedGaussian(mean, torch.zeros(2), torch.zeros(2), torch.ones(2), (2,))
    action, log_prob = dist.rsample_with_log_prob(noise=torch.zeros(1, 2))
    # the density of u minus 2·(log 2 − |u|) for each of the two
    assert log_prob.item() == pytest.approx(
        2 * (-0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 20.0)), rel=1e-5
    )
    (log_prob + dist.log_prob(action.detach()) + dist.entropy()).sum().backward()
    assert mean.grad is not None and mean.grad.isfinite().all()


@pytest.mark.parametrize("spread", [-2.0, 0.0, 0.7])
def test_squashed_entropy_is_the_mean_negative_log_prob(rng, spread):
    dist, _ = _squashed(torch.tensor([[0.3, -1.0, 0.0]]).expand(200_000, D), torch.full((D,), spread))
    _, log_prob = dist.sample_with_log_prob(rng)
    assert dist.entropy()[0].item() == pytest.approx(-log_prob.mean().item(), abs=0.02)


def test_beta_agrees_with_torch(rng):
    alpha, beta, alpha2, beta2 = 1.0 + 3.0 * torch.rand(4, N, D, generator=rng)
    low, width = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([2.0, 1.0, 4.0])
    ours = Beta(alpha, beta, low, width, (D,))
    base = reference.Beta(alpha, beta)
    theirs = reference.Independent(
        reference.TransformedDistribution(base, [reference.AffineTransform(low, width)]), 1
    )
    action = ours.sample(rng)
    assert ((action > low) & (action < low + width)).all()
    close(ours.log_prob(action), theirs.log_prob(action), 1e-4)
    close(ours.entropy(), (base.entropy() + width.log()).sum(-1), 1e-4)
    expected = reference.kl_divergence(base, reference.Beta(alpha2, beta2)).sum(-1)
    close(ours.kl(Beta(alpha2, beta2, low, width, (D,))), expected, 1e-4)


def test_beta_mode_mean_and_gradients(rng):
    a = torch.full((50_000, 1), 3.0, requires_grad=True)
    dist = Beta(a, torch.full((50_000, 1), 2.0), torch.tensor([-1.0]), torch.tensor([2.0]), (1,))
    assert dist.mode()[0].item() == pytest.approx(2 * (2.0 / 3.0) - 1)
    sample = dist.rsample(rng)
    assert sample.mean().item() == pytest.approx(2 * 0.6 - 1, abs=0.02)
    sample.mean().backward()
    assert a.grad is not None and a.grad.sum() > 0
    flat = Beta(torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1), torch.ones(1), (1,))
    assert flat.mode().item() == pytest.approx(0.5)


def test_joint_distribution_adds_up_its_parts(rng):
    discrete = Categorical(torch.randn(N, 4, generator=rng))
    box = DiagGaussian(torch.randn(N, 2, generator=rng), torch.zeros(2), (2,))
    joint = JointDistribution(
        {"gear": discrete, "rest": JointDistribution((box, MultiBernoulli(torch.zeros(N, 3), (3,))))}
    )
    action, log_prob = joint.sample_with_log_prob(rng)
    assert (
        action["gear"].shape == (N,)
        and action["rest"][0].shape == (N, 2)
        and action["rest"][1].dtype == torch.int8
    )
    parts = discrete.log_prob(action["gear"]) + box.log_prob(action["rest"][0]) + 3 * math.log(0.5)
    close(log_prob, parts)
    assert joint.atom_log_prob(action).shape == (N, 1 + 2 + 3)
    close(joint.atom_log_prob(action).sum(-1), log_prob)
    close(joint.entropy(), discrete.entropy() + box.entropy() + 3 * math.log(2.0))
    close(joint.kl(joint), torch.zeros(N))
    assert torch.equal(joint.mode()["rest"][0], box.mean)


def test_discrete_actions_refuse_a_reparameterised_sample():
    with pytest.raises(TypeError, match="discrete"):
        Categorical(torch.zeros(1, 2)).rsample()


def test_samples_carry_no_gradient_and_repeat_with_their_generator():
    mean = torch.zeros(N, D, requires_grad=True)
    dist = DiagGaussian(mean, torch.zeros(D), (D,))
    first = dist.sample(torch.Generator().manual_seed(7))
    assert not first.requires_grad and dist.rsample(torch.Generator().manual_seed(7)).requires_grad
    assert torch.equal(
        first, dist.sample(noise=normal((N, D), torch.Generator().manual_seed(7), torch.device("cpu")))
    )


@pytest.mark.parametrize("event", [(), (2, 2)])
def test_events_of_any_number_of_dimensions(rng, event):
    size = math.prod(event)
    dist = DiagGaussian(torch.zeros(4, N, size), torch.zeros(size), event)  # sequences [L, N]
    action = dist.sample(rng)
    assert action.shape == (4, N, *event) and dist.log_prob(action).shape == (4, N)
    assert dist.mode().shape == (4, N, *event) and dist.atom_log_prob(action).shape == (4, N, size)
    bits = MultiBernoulli(torch.zeros(N, size), event)
    assert bits.sample(rng).shape == (N, *event) and bits.entropy().shape == (N,)


def test_nine_thousand_dimensions_stay_finite(rng):  # case B29
    dist = DiagGaussian(torch.zeros(8, 9000, requires_grad=True), torch.zeros(9000), (9000,))
    action = dist.sample(rng)
    log_prob = dist.log_prob(action)
    assert log_prob.isfinite().all() and dist.entropy().isfinite().all()
    exact = reference.Normal(torch.zeros(8, 9000).double(), 1.0).log_prob(action.double()).sum(-1)
    close(log_prob, exact, 1e-5)
