"""Noise of deterministic policies: Gaussian, Ornstein–Uhlenbeck, and on parameters."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from uniarena import checkpoint
from uniarena.config import ConfigError, parse
from uniarena.explorers.actor import Actor
from uniarena.explorers.gaussian_noise import GaussianNoise
from uniarena.explorers.ornstein_uhlenbeck import OrnsteinUhlenbeck
from uniarena.explorers.parameter_noise import ParameterNoise
from uniarena.learners.off_policy.dqn import DQN
from uniarena.learners.off_policy.td3 import TD3
from uniarena.seeding import Streams

OBS = spaces.Box(-1.0, 1.0, (3,))
ACT = spaces.Box(np.float32([-1.0, 90.0]), np.float32([1.0, 110.0]))
HALF = torch.tensor([1.0, 10.0])
KINDS: dict[str, Any] = {"gaussian": GaussianNoise, "ou": OrnsteinUhlenbeck, "parameter": ParameterNoise}


def policy_of(actions: Any = ACT, kind: Any = TD3, **policy: Any) -> Any:
    cfg = parse(kind.Config, {}, "learner")
    section = {"hidden_sizes": [16], **policy}
    return kind.build_model(OBS, actions, section, {}, None, Streams(0), cfg=cfg).policy


def explorer(kind: str, actions: Any = ACT, warmup: int = 0, **fields: Any) -> Any:
    cls = KINDS[kind]
    return cls(parse(cls.Config, fields, "agent.explorer"), actions, warmup)


def walk(
    actor: Actor, steps: int, columns: int = 2, seed: int = 0, first: Tensor | None = None, state: Any = None
) -> tuple[Tensor, Any]:
    """Actions `[T, B, D]` of one chunk at a constant observation, and the state after it."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.zeros(columns, 3)
    with torch.inference_mode():
        noise = actor.noise(steps, columns, generator)
        actions = []
        for t in range(steps):
            row = noise[t] if isinstance(noise, Tensor) else None
            is_first = torch.zeros(columns, dtype=torch.bool) if first is None else first[t]
            action, state = actor.act(obs, state, is_first, row, generator)
            actions.append(action)
    return torch.stack(actions), state


def test_gaussian_noise_is_in_units_of_each_dimension_and_inside_the_bounds() -> None:
    frozen = policy_of().frozen()
    mode = frozen.mode(torch.zeros(1, 3))[0]
    actions, state = walk(Actor(frozen, explorer("gaussian", sigma=0.1)), 4000)
    deviation = (actions - mode) / HALF
    assert state is None
    assert deviation.std((0, 1)).tolist() == pytest.approx([0.1, 0.1], rel=0.05)
    assert deviation.mean((0, 1)).abs().max() < 0.01
    wild, _ = walk(Actor(frozen, explorer("gaussian", sigma=3.0)), 100)
    assert torch.equal(wild[..., 0].abs().max(), torch.tensor(1.0))
    assert wild[..., 1].min() >= 90.0 and wild[..., 1].max() <= 110.0


def test_noise_of_dict_actions() -> None:
    space = spaces.Dict({"arm": spaces.Box(-1.0, 1.0, (2,)), "hand": spaces.Box(0.0, 4.0, ())})
    frozen = policy_of(space).frozen()
    for kind in KINDS:
        actor = Actor(frozen, explorer(kind, space))
        generator = torch.Generator().manual_seed(0)
        noise = actor.noise(1, 5, generator)
        action, _ = actor.act(torch.zeros(5, 3), None, None, None if noise is None else noise[0], generator)
        assert action["arm"].shape == (5, 2) and action["hand"].shape == (5,)
        assert (action["hand"] >= 0).all() and (action["hand"] <= 4).all()


def test_sigma_follows_its_schedule_from_chunk_to_chunk() -> None:
    noise = explorer("gaussian", sigma={"start": 0.4, "end": 0.1, "env_steps": 100})
    frozen, spread = policy_of().frozen(), []
    for env_steps in (0, 50, 1000):
        noise.set_clock(env_steps, 0.0)
        spread.append(noise.noise(frozen, 2000, 1, torch.Generator().manual_seed(0)).std().item())
    assert spread == pytest.approx([0.4, 0.25, 0.1], rel=0.05)


def test_ornstein_uhlenbeck_by_hand() -> None:
    frozen = policy_of().frozen()
    mode = frozen.mode(torch.zeros(2, 3))[0]
    ou = explorer("ou", sigma=0.1, theta=0.5, dt=0.25)
    first = torch.zeros(6, 2, dtype=torch.bool)
    first[0], first[3, 1] = True, True
    draws = ou.noise(frozen, 6, 2, torch.Generator().manual_seed(0))
    assert draws.std().item() == pytest.approx(0.1 * math.sqrt(0.25), rel=0.4)
    actions, state = walk(Actor(frozen, ou), 6, first=first)
    x = torch.zeros(2, 2)
    for t in range(6):
        x = torch.where(first[t][:, None], 0.0, x)
        x = x - 0.5 * 0.25 * x + draws[t]
        torch.testing.assert_close((actions[t] - mode) / HALF, x, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(state, x)


def test_ornstein_uhlenbeck_goes_on_from_its_state() -> None:
    frozen, ou = policy_of().frozen(), explorer("ou")
    whole, _ = walk(Actor(frozen, ou), 6)
    draws = ou.noise(frozen, 6, 2, torch.Generator().manual_seed(0))
    state, parts = None, []
    for t in range(6):
        action, state = ou.act(frozen, torch.zeros(2, 3), state, None, draws[t], None)
        parts.append(action)
    torch.testing.assert_close(torch.stack(parts), whole)
    assert (torch.stack(parts)[1:] - torch.stack(parts)[:-1]).abs().sum() > 0


def test_a_rate_that_explodes_is_refused() -> None:
    with pytest.raises(ConfigError, match="without bound"):
        explorer("ou", theta=2.0)
    with pytest.raises(ConfigError, match="from 0 up"):
        explorer("gaussian", sigma=-0.1)


@pytest.mark.parametrize("kind", ["gaussian", "ou"])
def test_discrete_actions_are_refused_by_name(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"continuous actions") as caught:
        explorer(kind, spaces.Discrete(3))
    assert caught.value.path == "agent.explorer.type"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_there_are_no_log_probs(kind: str) -> None:
    assert not KINDS[kind].has_log_prob
    assert explorer(kind).behaviour_log_prob(None, None) is None


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_warm_up_comes_first_and_is_uniform(kind: str) -> None:
    frozen, noise = policy_of().frozen(), explorer(kind, warmup=1000)
    actor, generator = Actor(frozen, noise), torch.Generator().manual_seed(0)
    noise.set_clock(0, 0.0)
    drawn = actor.noise(1, 500, generator)
    row = {key: leaf[0] for key, leaf in drawn.items()}
    action, _ = actor.act(torch.zeros(500, 3), None, None, row, generator)
    row = (action - torch.tensor([0.0, 100.0])) / HALF
    assert row.std(0).tolist() == pytest.approx([1 / math.sqrt(3)] * 2, rel=0.1)
    noise.set_clock(1000, 0.0)
    assert not isinstance(actor.noise(1, 500, generator), dict)


def test_a_row_of_a_warm_up_counts_for_every_process_that_acts() -> None:
    noise = explorer("gaussian", warmup=1000)
    for parts, rows in ((1, 8), (2, 5)):
        noise.parts = parts
        drawn = Actor(policy_of().frozen(), noise).noise(8, 100, torch.Generator().manual_seed(0))
        assert int(drawn["rows"][:, 0].sum()) == rows if "rows" in drawn else rows == 8


# -- parameters ------------------------------------------------------------------------------------------------------
def test_parameter_noise_is_consistent_until_it_is_drawn_anew() -> None:
    frozen, noise = policy_of().frozen(), explorer("parameter", redraw_env_steps=20)
    mode, seen = frozen.mode(torch.zeros(2, 3))[0], []
    for env_steps in (0, 8, 16, 24):
        noise.set_clock(env_steps, 0.0)
        actions, _ = walk(Actor(frozen, noise), 4, seed=env_steps)
        assert all(torch.equal(actions[0], row) for row in actions)
        seen.append(actions[0])
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[1], seen[2])
    assert not torch.equal(seen[2], seen[3]) and not torch.equal(seen[0], mode)


def test_the_perturbation_rides_on_the_live_parameters() -> None:
    policy = policy_of()
    frozen, noise = policy.frozen(), explorer("parameter", redraw_env_steps=1000)
    noise.set_clock(0, 0.0)
    before, _ = walk(Actor(frozen, noise), 1)
    with torch.no_grad():
        policy.network.actor.output.bias += 1.0
    noise.set_clock(2, 0.0)
    after, _ = walk(Actor(frozen, noise), 1, seed=9)
    shift = torch.atanh((after - torch.tensor([0.0, 100.0])) / HALF)
    shift -= torch.atanh((before - torch.tensor([0.0, 100.0])) / HALF)
    torch.testing.assert_close(shift, torch.ones_like(shift), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("start", [0.001, 3.0])
def test_sigma_adapts_to_the_wanted_distance(start: float) -> None:
    frozen = policy_of().frozen()
    noise = explorer("parameter", sigma=start, target_distance=0.2, adaptation=1.2, redraw_env_steps=1)
    mode, distances = frozen.mode(torch.zeros(2, 3))[0], []
    for env_steps in range(0, 300, 2):
        noise.set_clock(env_steps, 0.0)
        actions, _ = walk(Actor(frozen, noise), 1, seed=env_steps)
        distances.append(((actions - mode) / HALF).square().mean().sqrt().item())
    assert np.median(distances[-80:]) == pytest.approx(0.2, rel=0.5)


def test_parameter_noise_of_a_q_network() -> None:
    space = spaces.Discrete(3)
    frozen = policy_of(space, DQN).frozen()
    noise = explorer("parameter", space, adaptation=1.5, redraw_env_steps=1)
    first = noise.sigma
    for env_steps in range(0, 40, 2):
        noise.set_clock(env_steps, 0.0)
        actions, _ = walk(Actor(frozen, noise), 1, seed=env_steps)
    assert actions.dtype == torch.int64 and noise.sigma != first
    distance, wanted = noise._distance(frozen, noise._apply(frozen), torch.zeros(4, 3))
    assert distance > 0.0 and wanted == pytest.approx(-math.log(1.0 - 0.1 + 0.1 / 3.0))


def test_stochastic_evaluation_leaves_the_perturbation_alone() -> None:
    frozen, noise = policy_of().frozen(), explorer("parameter", redraw_env_steps=4)
    actor = Actor(frozen, noise)
    noise.set_clock(0, 0.0)
    walk(actor, 2)
    state = copy.deepcopy(noise.state_dict())
    first = torch.zeros(5, dtype=torch.bool)
    actor.pick(torch.ones(5, 3), None, first, False, torch.Generator().manual_seed(3))
    for key, value in noise.state_dict().items():
        same = [torch.equal(a, b) for a, b in zip(value, state[key], strict=True)] if key == "epsilon" else []
        assert all(same)
    assert torch.equal(noise.state_dict()["seen"], state["seen"])


def test_parameter_noise_resumes_exactly_though_the_sampler_probes(tmp_path: Path) -> None:
    frozen = policy_of().frozen()

    def chunk(noise: Any, env_steps: int) -> Tensor:
        noise.set_clock(env_steps, 0.0)
        return walk(Actor(frozen, noise), 2, seed=env_steps)[0]

    straight = explorer("parameter", redraw_env_steps=8)
    expected = [chunk(straight, env_steps) for env_steps in range(0, 40, 4)]
    first = explorer("parameter", redraw_env_steps=8)
    for env_steps in range(0, 24, 4):
        chunk(first, env_steps)
    checkpoint.save(tmp_path / "saved", {"explorer": first.state_dict()}, {})
    resumed = explorer("parameter", redraw_env_steps=8)
    resumed.load_state_dict(checkpoint.load(tmp_path / "saved")[0]["explorer"])
    resumed.set_clock(24, 0.0)
    walk(Actor(frozen, resumed), 1, seed=77)  # what a sampler does once to learn the shape of an action
    found = [chunk(resumed, env_steps) for env_steps in range(24, 40, 4)]
    assert all(torch.equal(a, b) for a, b in zip(expected[6:], found, strict=True))
    assert resumed.sigma == straight.sigma
