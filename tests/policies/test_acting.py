"""Frozen policies, the sampling explorer, the actor: live, exact, without gradients; memory with resets."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from uniarena.batch import Batch, tree_map
from uniarena.explorers.actor import Actor
from uniarena.explorers.sample import SampleExplorer, SampleExplorerConfig
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.registry import lookup
from uniarena.seeding import Streams
from uniarena.values.model import Model, build_model

T, B = 12, 3
BOX = spaces.Box(-1.0, 1.0, (4,))
ACTION = spaces.Box(-1.0, 1.0, (2,))
FAKES = "tests.fakes.models"
MASKED = spaces.Dict({"obs": BOX, "action_mask": spaces.MultiBinary(3)})
MIXED = spaces.Dict({"pos": BOX, "task": spaces.Discrete(3)})
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)

CASES = {
    "plain": (BOX, ACTION, {}, True),
    "discrete": (BOX, spaces.Discrete(3), {}, True),
    "masked": (MASKED, spaces.Discrete(3), {}, True),
    "mixed": (MIXED, spaces.MultiDiscrete([2, 3]), {}, True),
    "image": (IMAGE, spaces.Discrete(3), {}, False),
    "gsde": (BOX, ACTION, {"gsde": True}, True),
    "beta": (BOX, ACTION, {"distribution": "beta"}, False),
    "no_hidden_layer": (BOX, ACTION, {"hidden_sizes": []}, True),
    "user": (BOX, ACTION, {"network": f"{FAKES}:ParamsOnly"}, True),
    "hybrid": (BOX, spaces.Dict({"a": spaces.Discrete(2), "b": ACTION}), {}, True),
    "memory": (BOX, spaces.Discrete(3), {"network": f"{FAKES}:RecurrentToy"}, True),
    "own_memory": (BOX, ACTION, {"network": f"{FAKES}:SameMemory"}, True),
}


def make(name: str, normalised: bool = False) -> tuple[Model, Actor]:
    observation_space, action_space, policy, floats = CASES[name]
    norm = None
    if normalised and floats:
        norm = ObservationNormalizer(observation_space)
        norm.accumulate(observe(observation_space, 64), torch.ones(64, dtype=torch.bool))
        norm.merge()
    model = build_model(observation_space, action_space, policy, {}, norm, Streams(0))
    return model, Actor(model.policy.frozen(), SampleExplorer(SampleExplorerConfig()))


def observe(space: spaces.Space, *shape: int, seed: int = 0):
    space.seed(seed)
    count = int(np.prod(shape))
    rows = [space.sample() for _ in range(count)]
    stacked = tree_map(lambda *leaves: torch.as_tensor(np.stack(leaves)), *rows)
    return tree_map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), stacked)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def collect(
    actor: Actor, space: spaces.Space, is_first: torch.Tensor, seed: int = 0, kept: list | None = None
) -> Batch:
    """Act over [T, B] observations as a sampler does."""
    obs = observe(space, T, B)
    noise, state = actor.noise(T, B, generator(seed)), actor.initial_state(B)
    actions, states, draws = [], [], generator(seed + 1)
    with torch.no_grad():
        for t in range(T):
            row = None if noise is None else tree_map(lambda leaf, t=t: leaf[t], noise)
            states.append(state)
            action, state = actor.act(
                tree_map(lambda leaf, t=t: leaf[t], obs), state, is_first[t], row, draws, kept
            )
            actions.append(action)
    fields = {"obs": obs, "action": tree_map(lambda *rows: torch.stack(rows), *actions), "is_first": is_first}
    if state is not None:
        fields["state"] = tree_map(lambda *rows: torch.stack(rows), *states)
    return Batch((T, B), fields)


def firsts() -> torch.Tensor:
    is_first = torch.zeros(T, B, dtype=torch.bool)
    is_first[0] = True
    is_first[6, 1] = is_first[7, 2] = is_first[8, 2] = True
    return is_first


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_frozen_policy_agrees_with_the_live_one(name, normalised):
    model, actor = make(name, normalised)
    obs = observe(CASES[name][0], B)
    state, is_first = actor.initial_state(B), torch.ones(B, dtype=torch.bool)
    with torch.inference_mode():
        params, _ = actor.policy.params(obs, state, is_first)
        mode, _ = actor.mode(obs, state, is_first)
    expected, _ = model.policy.params(obs, state, is_first)
    assert (params - expected).abs().max() < 1e-6 and not params.requires_grad
    dist, _ = model.policy(obs, state, is_first)
    torch.testing.assert_close(mode, tree_map(lambda leaf: leaf.detach(), dist.mode()), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_log_probs_annotated_per_chunk_equal_those_of_an_update(name):  # case B71
    model, actor = make(name, normalised=True)
    rows = collect(actor, CASES[name][0], firsts())
    state = None if "state" not in rows else tree_map(lambda leaf: leaf[0], rows.state)
    log_prob = actor.log_prob(rows, state)
    assert log_prob.shape == (T, B) and log_prob.isfinite().all() and not log_prob.requires_grad
    again = model(rows.obs, state, rows.is_first).dist.log_prob(rows.action)
    assert (again - log_prob).abs().max() < 1e-5


@pytest.mark.parametrize("name", CASES)
def test_log_probs_of_what_was_kept_equal_those_of_a_pass_and_need_none(name, monkeypatch):
    _, actor = make(name, normalised=True)
    kept = actor.keeps()
    rows = collect(actor, CASES[name][0], firsts(), kept=kept)
    state = None if "state" not in rows else tree_map(lambda leaf: leaf[0], rows.state)
    assert kept is not None and len(kept) == T
    with monkeypatch.context() as patch:
        for method in ("params", "_plainly"):
            patch.setattr(actor.policy, method, None)  # nobody may ask
        found = actor.log_prob(rows, state, kept)
    torch.testing.assert_close(found, actor.log_prob(rows, state), atol=1e-5, rtol=0)


class Twice(SampleExplorer):
    """Asks the policy more than once."""

    def chunk_act(self, policy, obs, state, is_first, noise, generator):
        policy.sample(obs * 2, state, is_first, noise, generator)
        return super().chunk_act(policy, obs, state, is_first, noise, generator)


class Shifted(SampleExplorer):
    """Has another density."""

    def behaviour_log_prob(self, policy, rows, state=None):
        return super().behaviour_log_prob(policy, rows.replace(obs=rows.obs + 1), state)


@pytest.mark.parametrize("kind", [Twice, Shifted])
def test_nothing_is_kept_where_somebody_changed_how_is_acted(kind):
    _, actor = make("plain")
    assert actor.keeps() == []
    assert Actor(actor.policy, kind(SampleExplorerConfig())).keeps() is None
    actor.explorer.act = actor.explorer.act
    assert actor.keeps() is None


def test_nothing_is_kept_during_a_warm_up_or_of_another_policy():
    _, actor = make("plain")
    explorer = SampleExplorer(SampleExplorerConfig(warmup=10), ACTION)
    assert Actor(actor.policy, explorer).keeps() is None
    explorer.set_clock(10, 0.1)
    assert Actor(actor.policy, explorer).keeps() == []
    assert Actor(type("Other", (), {})(), explorer).keeps() is None


def test_memory_recomputed_over_a_sequence_equals_step_by_step_with_resets():  # case B71
    model, actor = make("memory")
    rows = collect(actor, BOX, firsts())
    start = {"h": torch.zeros(B, 8)}  # whatever was there before: every column begins with is_first
    dist, value, state = model(rows.obs, start, rows.is_first)
    expected, running = [], start
    for t in range(T):
        step = model(rows.obs[t], running, rows.is_first[t])
        running = step.state
        expected.append((step.dist.log_prob(rows.action[t]), step.value))
    assert (dist.log_prob(rows.action) - torch.stack([e[0] for e in expected])).abs().max() < 1e-5
    assert (value - torch.stack([e[1] for e in expected])).abs().max() < 1e-5
    torch.testing.assert_close(state["h"], running["h"])
    fresh = model(rows.obs[6, 1:2], None, None)  # an episode's first row knows nothing of the episode before
    assert (fresh.dist.log_prob(rows.action[6, 1:2]) - expected[6][0][1]).abs().max() < 1e-6
    blind = model(rows.obs, start, torch.zeros_like(rows.is_first)).dist.log_prob(rows.action)
    assert (blind - torch.stack([e[0] for e in expected])).abs().max() > 1e-3, "a forgotten reset would show"


def test_gradients_flow_through_a_sequence_up_to_the_resets():
    model, _ = make("memory")
    start = {"h": torch.zeros(B, 8, requires_grad=True)}
    is_first = torch.zeros(T, B, dtype=torch.bool)
    is_first[3, 1] = True
    out = model(observe(BOX, T, B), start, is_first)
    out.value[-1].sum().backward()
    assert start["h"].grad is not None
    assert (start["h"].grad[1] == 0).all() and (start["h"].grad[0] != 0).any()
    assert model.initial_state(2)["h"].shape == (2, 8)


def test_memory_without_a_value_gets_a_value_network():
    policy = {"network": f"{FAKES}:RecurrentToy", "values": False}
    model = build_model(BOX, ACTION, policy, {}, None, Streams(0))
    out = model(observe(BOX, T, B), model.initial_state(B), firsts())
    assert out.value.shape == (T, B) and out.state["h"].shape == (B, 8) and out.dist.mean.shape == (T, B, 2)


@pytest.mark.parametrize("name", CASES)
def test_a_chunk_repeats_with_its_generators(name):
    _, actor = make(name)
    first, again = (collect(actor, CASES[name][0], firsts(), seed=5).action for _ in range(2))
    other = collect(actor, CASES[name][0], firsts(), seed=6).action
    assert _same(first, again) and not _same(first, other)


def test_the_actor_is_live_and_a_copy_is_not():
    model, actor = make("plain", normalised=True)
    kept, obs = copy.deepcopy(actor), observe(BOX, B)
    with torch.inference_mode():
        before = actor.mode(obs)[0].clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
        model.normalizer.accumulate(3 * observe(BOX, 50), torch.ones(50, dtype=torch.bool))
        model.normalizer.merge()
        assert torch.equal(kept.mode(obs)[0], before)
        assert (actor.mode(obs)[0] - model.policy(obs)[0].mode()).abs().max() < 1e-6
        assert not torch.equal(actor.mode(obs)[0], before)


def test_acting_is_in_evaluation_mode_and_leaves_the_training_mode_alone():
    model = build_model(BOX, ACTION, {"network": f"{FAKES}:DropoutNet"}, {}, None, Streams(0))
    actor, obs = Actor(model.policy.frozen(), SampleExplorer(SampleExplorerConfig())), observe(BOX, B)
    assert model.training
    with torch.no_grad():
        assert torch.equal(actor.mode(obs)[0], actor.mode(obs)[0])
        assert not torch.equal(model.policy(obs)[0].mode(), model.policy(obs)[0].mode())
    assert all(part.training for part in model.modules())


def test_masks_hold_while_acting():
    _, actor = make("masked")
    mask = torch.tensor([[True, False, True]]).expand(500, 3)
    obs = {"obs": torch.randn(500, 4), "action_mask": mask}
    action, _ = actor.act(obs, noise=actor.noise(1, 500, generator())[0])
    assert set(action.tolist()) == {0, 2} and not (actor.mode(obs)[0] == 1).any()


def test_state_dependent_noise_is_the_same_function_all_through_a_chunk():
    _, actor = make("gsde")
    noise, obs = actor.noise(T, B, generator()), observe(BOX, B)
    with torch.inference_mode():
        actions = [actor.act(obs, noise=noise[t])[0] for t in range(T)]
    assert all(torch.equal(action, actions[0]) for action in actions)
    assert not torch.equal(actions[0], actor.mode(obs)[0].detach())


def test_the_explorer_is_found_by_name_and_has_nothing_to_save():
    assert lookup("explorer", "sample") is SampleExplorer
    explorer = SampleExplorer(SampleExplorerConfig())
    explorer.load_state_dict(explorer.state_dict())
    with pytest.raises(ValueError, match="has no state"):
        explorer.load_state_dict({"sigma": 1.0})


def test_actions_have_the_dtype_of_their_space():  # case B17
    for name, dtype in {"discrete": torch.int64, "plain": torch.float32, "beta": torch.float32}.items():
        _, actor = make(name)
        action, _ = actor.act(observe(CASES[name][0], B).double(), generator=generator())
        assert action.dtype == dtype


def _same(a, b) -> bool:
    return all(_same(a[key], b[key]) for key in a) if isinstance(a, dict) else torch.equal(a, b)
