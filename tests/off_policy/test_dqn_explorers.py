"""ε-greedy, Boltzmann and the random warm-up: rates, masks, schedules, one draw per chunk."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from uniarena.batch import Batch, Tree, tree_leaves, tree_map
from uniarena.config import ConfigError, parse
from uniarena.explorers.actor import Actor
from uniarena.explorers.base import Explorer
from uniarena.explorers.boltzmann import Boltzmann, BoltzmannConfig
from uniarena.explorers.decay import DecayConfig
from uniarena.explorers.epsilon_greedy import EpsilonGreedy, EpsilonGreedyConfig
from uniarena.explorers.sample import SampleExplorer, SampleExplorerConfig
from uniarena.explorers.uniform import UniformActions, legal_choice
from uniarena.policies.heads import build_head
from uniarena.values.q_model import GreedyHead

N = 4
SPACE = spaces.Discrete(N)


class Fixed:
    """A policy whose parameters are the observation itself."""

    def __init__(self, head: Any) -> None:
        self.head, self.redraws = head, 0

    def noise(self, steps: int, columns: int, generator: torch.Generator) -> Tree | None:
        self.redraws += 1
        return self.head.noise(steps, columns, generator)

    def params(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> Any:
        return (obs["obs"] if isinstance(obs, dict) else obs), state

    def sample(self, obs: Tree, state: Any, is_first: Any, noise: Any, generator: Any) -> Any:
        mask = obs.get("action_mask") if isinstance(obs, dict) else None
        return self.head.sample(self.params(obs)[0], noise, mask, generator), state


POLICY = Fixed(GreedyHead(SPACE))


def gather(
    explorer: Explorer, obs: Tree, steps: int, columns: int, seed: int = 0, policy: Any = POLICY
) -> Tensor:
    """`[T, B]` actions of one chunk."""
    actor, generator = Actor(policy, explorer), torch.Generator().manual_seed(seed)
    noise = actor.noise(steps, columns, generator)
    rows = [None if noise is None else tree_map(lambda leaf, t=t: leaf[t], noise) for t in range(steps)]
    return torch.stack([actor.act(obs, None, None, row, generator)[0] for row in rows])


def q(columns: int, best: int = 2) -> Tensor:
    return torch.nn.functional.one_hot(torch.full((columns,), best), N).float()


def eps(**fields: Any) -> EpsilonGreedy:
    return EpsilonGreedy(EpsilonGreedyConfig(**fields), SPACE)


# -- ε-greedy ----------------------------------------------------------------------------------------------
def test_epsilon_greedy_rates() -> None:
    actions = gather(eps(epsilon=0.4), q(100), 200, 100).flatten()
    share = torch.bincount(actions, minlength=N) / len(actions)
    expected = torch.tensor([0.1, 0.1, 0.7, 0.1])
    deviation = (expected * (1 - expected) / len(actions)).sqrt()
    assert ((share - expected).abs() < 4 * deviation).all()


def test_epsilon_of_zero_is_greedy_and_of_one_is_uniform() -> None:
    assert (gather(eps(epsilon=0.0), q(5), 50, 5) == 2).all()
    share = torch.bincount(gather(eps(epsilon=1.0), q(100), 100, 100).flatten(), minlength=N) / 10_000
    assert (share - 0.25).abs().max() < 0.02


def test_epsilon_greedy_stays_within_masks() -> None:
    masks = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0]])
    obs = {"obs": q(4), "action_mask": masks}
    actions = gather(eps(epsilon=0.8), obs, 3000, 4)
    for column, mask in enumerate(masks):
        allowed = mask if mask.any() else torch.ones(N)
        taken = torch.bincount(actions[:, column], minlength=N)
        assert (taken[allowed == 0] == 0).all() and (taken[allowed == 1] > 0).all()
    third = (
        torch.bincount(actions[:, 2], minlength=N) / 3000
    )  # greedy among the legal: the first of equal ones
    assert (third - torch.tensor([0.2 + 0.8 / 3, 0.8 / 3, 0.0, 0.8 / 3])).abs().max() < 0.04


def test_epsilon_greedy_draws_a_chunk_at_once_and_lets_noisy_layers_redraw() -> None:
    policy, generator = Fixed(GreedyHead(SPACE)), torch.Generator().manual_seed(0)
    noise = eps(epsilon=0.5).noise(policy, 7, 3, generator)
    assert isinstance(noise, Tensor) and noise.shape == (7, 3) and policy.redraws == 1
    alone, _ = eps(epsilon=0.5).act(policy, q(3), None, None, None, generator)
    assert alone.shape == (3,)


def test_epsilon_works_on_the_logits_of_a_stochastic_policy() -> None:
    policy = Fixed(build_head(SPACE))
    assert (gather(eps(epsilon=0.0), q(5), 20, 5, policy=policy) == 2).all()


def test_linear_schedule_over_a_fraction_of_the_run() -> None:
    explorer = eps()  # 1 → 0.05 over 10 %
    assert explorer.epsilon == 1.0
    for progress, expected in ((0.05, 0.525), (0.1, 0.05), (0.7, 0.05)):
        explorer.set_clock(123, progress)
        assert explorer.epsilon == pytest.approx(expected)


def test_schedules_in_env_steps() -> None:
    linear = DecayConfig(start=1.0, end=0.2, env_steps=100)
    assert [linear.at(step, 0.9) for step in (0, 50, 100, 1000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    exponential = DecayConfig(type="exponential", start=1.0, end=0.01, env_steps=100)
    assert [exponential.at(step, 0.0) for step in (0, 50, 100, 101)] == pytest.approx([1.0, 0.1, 0.01, 0.01])
    assert DecayConfig(fraction=0.0, end=0.3).at(0, 0.0) == 0.3


def test_schedules_from_yaml() -> None:
    cfg = parse(
        EpsilonGreedyConfig, {"epsilon": {"end": "1e-2", "fraction": 0.5}, "warmup": 3}, "agent.explorer"
    )
    assert cfg.epsilon == DecayConfig(end=0.01, fraction=0.5) and cfg.warmup == 3
    assert parse(EpsilonGreedyConfig, {"epsilon": 0.1}, "agent.explorer").epsilon == 0.1
    assert (
        parse(BoltzmannConfig, {"temperature": {"type": "exponential"}}, "agent.explorer").temperature.end
        == 0.05
    )


@pytest.mark.parametrize(
    ("cls", "keys", "message"),
    [
        (EpsilonGreedyConfig, {"epsilon": 1.5}, "probabilities"),
        (EpsilonGreedyConfig, {"epsilon": {"end": -0.1}}, "probabilities"),
        (EpsilonGreedyConfig, {"epsilon": {"env_steps": 5, "fraction": 0.1}}, "keep one"),
        (EpsilonGreedyConfig, {"epsilon": {"type": "exponential", "end": 0.0}}, "never reaches 0"),
        (EpsilonGreedyConfig, {"warmup": -1}, "at least 0"),
        (BoltzmannConfig, {"temperature": 0.0}, "above 0"),
    ],
)
def test_wrong_settings_are_refused(cls: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(cls, keys, "agent.explorer")


@pytest.mark.parametrize("kind", [EpsilonGreedy, Boltzmann])
def test_other_actions_are_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match="one of a list"):
        kind(kind.Config(), spaces.Box(-1.0, 1.0, (2,)))


# -- Boltzmann ---------------------------------------------------------------------------------------------
def test_boltzmann_frequencies_are_a_softmax() -> None:
    explorer = Boltzmann(BoltzmannConfig(temperature=0.5), SPACE)
    values = torch.tensor([0.0, 0.2, 0.5, -0.3])
    actions = gather(explorer, values.expand(100, -1), 300, 100).flatten()
    share = torch.bincount(actions, minlength=N) / len(actions)
    assert (share - (values / 0.5).softmax(-1)).abs().max() < 0.01


def test_boltzmann_masks_and_temperature_schedule() -> None:
    explorer = Boltzmann(BoltzmannConfig(temperature=DecayConfig(start=2.0, end=0.01, env_steps=10)), SPACE)
    obs = {"obs": q(50), "action_mask": torch.tensor([1, 1, 0, 1]).expand(50, -1)}
    assert set(gather(explorer, obs, 50, 50).flatten().tolist()) == {0, 1, 3}
    explorer.set_clock(10, 0.0)
    assert explorer.temperature == pytest.approx(0.01)
    assert (gather(explorer, q(50), 20, 50) == 2).all()


def test_boltzmann_log_prob() -> None:
    explorer = Boltzmann(BoltzmannConfig(temperature=2.0), SPACE)
    rows = Batch((2, 1), obs=torch.tensor([[[2.0, 0.0, 0.0, 0.0]]] * 2), action=torch.tensor([[0], [3]]))
    found = explorer.behaviour_log_prob(POLICY, rows)  # type: ignore[arg-type]
    total = math.e + 3.0
    assert found is not None
    assert found[:, 0].tolist() == pytest.approx([1.0 - math.log(total), -math.log(total)])


# -- warm-up -----------------------------------------------------------------------------------------------
def greedy(warmup: int, space: spaces.Space[Any] = SPACE) -> SampleExplorer:
    return SampleExplorer(SampleExplorerConfig(), space, warmup)


def test_warm_up_ends_after_exactly_its_env_steps() -> None:
    explorer, columns = greedy(25), 5
    actions = gather(explorer, q(columns), 20, columns)  # 25 env steps are the first five rows
    assert (actions[5:] == 2).all() and len(actions[:5].unique()) == N
    explorer.set_clock(24, 0.1)
    late = torch.stack([gather(explorer, q(columns), 3, columns, seed) for seed in range(40)])
    assert (late[:, 1:] == 2).all() and (late[:, 0] != 2).any()


def test_warm_up_is_a_function_of_env_steps_so_a_resumed_run_has_none() -> None:
    explorer = greedy(25)
    explorer.set_clock(25, 0.5)
    assert not explorer.warming_up and (gather(explorer, q(3), 10, 3) == 2).all()
    assert explorer.state_dict() == {}


def test_warm_up_of_whole_chunks_asks_the_policy_nothing() -> None:
    class Silent(Fixed):
        def params(self, *args: Any) -> Any:
            raise AssertionError("not needed")

    silent = Silent(GreedyHead(SPACE))
    actions = gather(greedy(1000), q(50), 20, 50, policy=silent).flatten()
    assert (torch.bincount(actions, minlength=N) / 1000 - 0.25).abs().max() < 0.06


def test_own_warm_up_counts_before_the_learner_s() -> None:
    assert SampleExplorer(SampleExplorerConfig(warmup=7), SPACE, 100).warmup == 7
    assert SampleExplorer(SampleExplorerConfig(warmup=0), SPACE, 100).warmup == 0
    assert SampleExplorer(SampleExplorerConfig(), SPACE, 100).warmup == 100
    with pytest.raises(ValueError, match="action space"):
        SampleExplorer(SampleExplorerConfig(), None, 100)


def test_warm_up_respects_masks() -> None:
    masks = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]])
    actions = gather(greedy(10_000), {"obs": q(3), "action_mask": masks}, 2000, 3)
    assert set(actions[:, 0].tolist()) == {0, 3}
    assert set(actions[:, 1].tolist()) == {1}
    assert set(actions[:, 2].tolist()) == {0, 1, 2, 3}
    assert (actions[:, 0] == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_a_warm_up_is_the_sampler_s_alone() -> None:
    actor = Actor(POLICY, greedy(1000))  # type: ignore[arg-type]
    first = torch.zeros(3, dtype=torch.bool)
    action, _ = actor.pick(q(3), None, first, False, torch.Generator().manual_seed(0))
    assert (action == 2).all()


def test_no_density_during_the_warm_up() -> None:
    explorer = greedy(5)
    assert explorer.has_log_prob and explorer.behaviour_log_prob(POLICY, Batch((1, 1))) is None  # type: ignore[arg-type]


NESTED = spaces.Dict(
    {
        "box": spaces.Box(np.array([-3.0, 1.0], np.float32), np.array([-1.0, 5.0], np.float32)),
        "both": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3))),
        "one": spaces.Discrete(3),
    }
)


@pytest.mark.parametrize(
    "space",
    [
        SPACE,
        NESTED,
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.MultiBinary((2, 2)),
        spaces.Box(-2.0, 2.0, (2, 3)),
    ],
)
def test_uniform_actions_fill_every_space(space: spaces.Space[Any]) -> None:
    uniform, generator = UniformActions(space, "x"), torch.Generator().manual_seed(0)
    noise = uniform.noise(2, 500, generator)
    action = uniform.act(tree_map(lambda leaf: leaf[1], noise))
    kinds = build_head(space).sample(torch.zeros(500, build_head(space).param_dim), generator=generator)
    for found, expected in zip(tree_leaves(action), tree_leaves(kinds), strict=True):
        assert found.dtype == expected.dtype and found.shape == expected.shape
    for row in range(50):
        assert space.contains(tree_map(lambda leaf, row=row: leaf[row].numpy(), action)) or isinstance(
            space, spaces.Discrete | spaces.Dict
        )
    for leaf in tree_leaves(action):
        assert len(leaf.reshape(500, -1)[:, 0].unique()) > 1


def test_uniform_box_covers_its_bounds_per_dimension() -> None:
    uniform = UniformActions(NESTED, "x")
    action = uniform.act(
        tree_map(lambda leaf: leaf[0], uniform.noise(1, 4000, torch.Generator().manual_seed(0)))
    )["box"]
    assert action.min(0).values.tolist() == pytest.approx([-3.0, 1.0], abs=0.02)
    assert action.max(0).values.tolist() == pytest.approx([-1.0, 5.0], abs=0.02)


def test_uniform_multi_discrete_respects_concatenated_masks() -> None:
    space = spaces.MultiDiscrete([2, 3])
    mask = torch.tensor([[0, 1, 1, 0, 1]]).expand(300, -1)
    noise = UniformActions(space, "x").noise(1, 300, torch.Generator().manual_seed(0))
    action = UniformActions(space, "x").act(noise[0], mask)
    assert (action[:, 0] == 1).all() and set(action[:, 1].tolist()) == {0, 2}


@pytest.mark.parametrize("high", [np.inf, 3.4e38])
def test_warm_up_without_finite_bounds_is_refused_with_the_way_out(high: float) -> None:
    box = spaces.Box(np.array([-1.0, -high], np.float32), np.array([1.0, high], np.float32))
    with pytest.raises(ConfigError, match=r"dimension \[1\][\s\S]*warmup: 0"):
        greedy(10, box)
    assert greedy(0, box).warmup == 0


def test_legal_choice_reaches_every_choice_and_no_other() -> None:
    edge = torch.tensor([0.0, 1.0 - 2.0**-24])
    for count in range(1, 40):
        assert legal_choice(edge, count, None).tolist() == [0, count - 1]
        assert legal_choice(edge, count, torch.ones(2, count)).tolist() == [0, count - 1]
