"""Heads: widths, noise drawn ahead, the short way to a sample, bounds, gSDE."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from uniarena.config import ConfigError
from uniarena.policies.heads import GaussianHead, StateDependentHead, build_head

T, B = 5, 4
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 4.0], np.float32))
HYBRID = spaces.Dict(
    {
        "gear": spaces.Discrete(3),
        "throttle": BOX,
        "rest": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
    }
)
CASES = {
    "discrete": (spaces.Discrete(3), {}, 3),
    "multi_discrete": (spaces.MultiDiscrete([2, 4]), {}, 6),
    "even_multi_discrete": (spaces.MultiDiscrete([3, 3]), {}, 6),
    "multi_discrete_matrix": (spaces.MultiDiscrete([[2, 3], [4, 2]]), {}, 11),
    "multi_binary": (spaces.MultiBinary(3), {}, 3),
    "multi_binary_matrix": (spaces.MultiBinary([2, 2]), {}, 4),
    "gaussian": (BOX, {}, 2),
    "gaussian_state_std": (BOX, {"state_std": True}, 4),
    "gaussian_scalar": (spaces.Box(-1.0, 1.0, ()), {}, 1),
    "gaussian_matrix": (spaces.Box(-1.0, 1.0, (2, 3)), {}, 6),
    "squashed": (BOX, {"distribution": "squashed_gaussian"}, 2),
    "beta": (BOX, {"distribution": "beta"}, 4),
    "gsde": (BOX, {"latent_dim": 6}, 8),
    "hybrid": (HYBRID, {}, 3 + 2 + 2 + 5),
    "hybrid_beta": (HYBRID, {"distribution": "beta"}, 3 + 4 + 2 + 5),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def leaves(tree):
    return tree.values() if isinstance(tree, dict) else tree


@pytest.mark.parametrize("name", CASES)
def test_samples_modes_and_log_probs_lie_in_the_space(name):
    space, options, width = CASES[name]
    head = build_head(space, **options)
    assert head.param_dim == width
    params = torch.randn(B, width, generator=generator())
    noise = head.noise(T, B, generator(1))
    step = None if noise is None else _row(noise, 2)
    dist = head.dist(params)
    for action in (
        head.sample(params, step, generator=generator(2)),
        head.mode(params),
        dist.sample(generator(3)),
    ):
        bounded = options.get("distribution") in ("squashed_gaussian", "beta")
        for row in range(B):
            one = _numpy_row(action, row)
            assert _shapes_match(space, one)
            if bounded or ("gaussian" not in name and name not in ("gsde", "hybrid")):
                assert space.contains(one), one
        log_prob = dist.log_prob(action)
        assert log_prob.shape == (B,) and log_prob.isfinite().all()
        assert dist.entropy().shape == (B,) and dist.kl(head.dist(params)).abs().max() < 1e-5


@pytest.mark.parametrize("name", [name for name in CASES if "beta" not in name])
def test_noise_of_a_chunk_comes_in_one_draw_and_repeats(name):
    space, options, width = CASES[name]
    head = build_head(space, **options)
    params = torch.randn(B, width, generator=generator())
    first, again, other = (head.noise(T, B, generator(seed)) for seed in (3, 3, 4))
    samples = [head.sample(params, _row(noise, T - 1)) for noise in (first, again, other)]
    assert _equal(samples[0], samples[1])
    assert not all(_equal(_row(first, t), _row(other, t)) for t in range(T))


def test_beta_noise_has_no_fixed_size_but_samples_repeat_with_the_generator():
    head = build_head(HYBRID, "beta")
    assert head.noise(T, B, generator()) is None
    params = torch.zeros(B, head.param_dim)
    a, b = (head.sample(params, None, None, generator(5)) for _ in range(2))
    assert _equal(a, b)


@pytest.mark.parametrize("name", ["discrete", "multi_discrete", "gaussian", "squashed", "multi_binary"])
def test_the_short_way_equals_the_distribution(name):
    space, options, width = CASES[name]
    head = build_head(space, **options)
    params = torch.randn(B, width, generator=generator())
    noise = head.noise(T, B, generator())[0]
    assert torch.equal(head.sample(params, noise), head.dist(params).sample(noise=noise))
    assert torch.equal(head.mode(params), head.dist(params).mode())


def test_masks_reach_every_choice_of_a_multi_discrete():
    head = build_head(spaces.MultiDiscrete([2, 3]))
    params = torch.tensor([[5.0, 0.0, 5.0, 0.0, 0.0]]).repeat(500, 1)
    mask = torch.tensor([[False, True, False, True, False]]).repeat(500, 1)
    assert head.mask_dim == 5
    noise = head.noise(1, 500, generator())[0]
    dist = head.dist(params, mask)
    assert (head.sample(params, noise, mask) == torch.tensor([1, 1])).all()
    assert (dist.mode() == torch.tensor([1, 1])).all()
    assert dist.log_prob(torch.tensor([[1, 1]]).expand(500, 2)).abs().max() < 1e-6
    assert dist.entropy().abs().max() < 1e-6
    half = torch.tensor([[False, False, True, True, False]])  # no legal entry in the first choice: all are
    dist = head.dist(torch.zeros(1, 5), half)
    assert dist.entropy().item() == pytest.approx(2 * math.log(2.0), rel=1e-5)


def test_the_learned_log_std_starts_where_it_is_told():
    head = build_head(spaces.Box(-np.inf, np.inf, (3,)), log_std_init=-0.5)
    assert isinstance(head, GaussianHead) and head.log_std is not None
    assert head.log_std.tolist() == [-0.5] * 3 and head.log_std.requires_grad
    assert build_head(BOX, state_std=True).dist(torch.full((1, 4), 50.0)).log_std.max() == 2.0


@pytest.mark.parametrize("distribution", ["squashed_gaussian", "beta"])
@pytest.mark.parametrize("high", [np.inf, np.finfo(np.float32).max])
def test_infinite_bounds_are_refused_by_dimension(distribution, high):  # case B15
    bounds = np.array([1.0, high, 1.0], np.float32)
    with pytest.raises(ConfigError, match=r"dimension 1 of") as error:
        build_head(spaces.Box(-bounds, bounds), distribution)
    assert error.value.path == "agent.policy.distribution" and "gaussian" in error.value.hint
    assert build_head(spaces.Box(-bounds, bounds)).param_dim == 3  # unbounded Gaussian: no bounds needed


class TestStateDependentExploration:
    head = StateDependentHead(spaces.Box(-1.0, 1.0, (2,)), latent_dim=3, log_std_init=-1.0)

    def test_noise_is_one_matrix_per_column_for_the_whole_chunk(self):
        noise = self.head.noise(T, B, generator())
        assert noise.shape == (T, B, 3, 2)
        assert noise.stride(0) == 0, "a view, not T copies"
        assert not torch.equal(noise[0, 0], noise[0, 1])

    def test_the_action_is_the_mean_plus_latent_times_matrix(self):
        params = torch.tensor([[0.1, -0.2, 1.0, 2.0, 0.5]])
        noise = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [2.0, -2.0]]])
        sigma = math.exp(-1.0)
        expected = [[0.1 + sigma * (1.0 + 0.5 * 2.0), -0.2 + sigma * (2.0 - 0.5 * 2.0)]]
        torch.testing.assert_close(self.head.sample(params, noise), torch.tensor(expected))
        assert torch.equal(self.head.mode(params), params[:, :2])

    def test_the_marginal_is_a_gaussian_of_the_stated_deviation(self):
        params = torch.tensor([[0.3, -0.3, 1.0, 2.0, 0.5]]).repeat(100_000, 1)
        action = self.head.sample(params, self.head.noise(1, 100_000, generator())[0])
        dist = self.head.dist(params)
        expected = math.sqrt((1.0 + 4.0 + 0.25) * math.exp(-2.0) + 1e-6)
        assert dist.std[0].tolist() == pytest.approx([expected] * 2, rel=1e-5)
        assert action.std(0).tolist() == pytest.approx([expected] * 2, rel=0.01)
        assert action.mean(0).tolist() == pytest.approx([0.3, -0.3], abs=0.01)

    def test_no_gradient_reaches_the_features_through_the_noise(self):
        params = torch.randn(B, 5, generator=generator(), requires_grad=True)
        dist = self.head.dist(params)
        (dist.log_prob(torch.zeros(B, 2)) + dist.entropy()).sum().backward()
        assert params.grad is not None
        assert (params.grad[:, 2:] == 0).all() and (params.grad[:, :2] != 0).all()
        assert self.head.log_std.grad is not None and (self.head.log_std.grad != 0).all()

    @pytest.mark.parametrize(
        ("space", "distribution"), [(spaces.Discrete(2), "auto"), (BOX, "beta"), (BOX, "squashed_gaussian")]
    )
    def test_it_is_refused_where_it_has_no_meaning(self, space, distribution):
        with pytest.raises(ConfigError, match="gsde"):
            build_head(space, distribution, latent_dim=4)


def _row(noise, t):
    return tuple(_row(part, t) for part in noise) if isinstance(noise, tuple) else noise[t]


def _equal(a, b) -> bool:
    if isinstance(a, dict):
        return all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return torch.equal(a, b)


def _numpy_row(action, row):
    if isinstance(action, dict):
        return {key: _numpy_row(part, row) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple(_numpy_row(part, row) for part in action)
    return action[row].detach().numpy()


def _shapes_match(space, value) -> bool:
    if isinstance(space, spaces.Dict):
        return all(_shapes_match(space[key], value[key]) for key in space)
    if isinstance(space, spaces.Tuple):
        return all(_shapes_match(child, part) for child, part in zip(space, value, strict=True))
    return value.shape == (space.shape or ())
