"""Q-policies while they act: exact, live, greedy; noisy layers redrawn at chunk boundaries only."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tests.off_policy.chain import ACTIONS, MASKED, SPACE, chain, make
from uniarena.batch import Batch, Tree, tree_map
from uniarena.config import ConfigError, Section
from uniarena.explorers.actor import Actor
from uniarena.explorers.sample import SampleExplorer, SampleExplorerConfig
from uniarena.nets.inference import FlatMLP
from uniarena.nets.noisy import NoisyLinear, make_noisy, noisy_layers, redraw, without_noise
from uniarena.nets.normalizer import ObservationNormalizer

IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
MIXED = spaces.Dict({"pos": SPACE, "task": spaces.Discrete(3)})
THREE = spaces.Discrete(3)


class Bare(nn.Module):
    """A user's whole Q-network."""

    def __init__(self, obs_dim: int, act_dim: int, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(obs_dim, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, act_dim)
        )

    def forward(self, obs: Tensor) -> Tensor:
        return self.layers(obs)


CASES: dict[str, tuple[spaces.Space[Any], dict[str, Any], dict[str, Any]]] = {
    "plain": (SPACE, {}, {}),
    "tanh": (SPACE, {"activation": "tanh", "hidden_sizes": [16], "orthogonal": True}, {}),
    "linear": (SPACE, {"hidden_sizes": []}, {}),
    "dueling": (SPACE, {}, {"dueling": True}),
    "dueling_linear": (SPACE, {"hidden_sizes": []}, {"dueling": True}),
    "c51": (SPACE, {}, {"returns": "c51"}),
    "qr": (SPACE, {}, {"returns": "qr", "n_quantiles": 7}),
    "iqn": (SPACE, {}, {"returns": "iqn", "n_quantiles": 5}),
    "noisy": (SPACE, {}, {"noisy": True}),
    "rainbow": (SPACE, {}, {"noisy": True, "dueling": True, "returns": "c51"}),
    "noisy_iqn": (SPACE, {}, {"noisy": True, "dueling": True, "returns": "iqn"}),
    "masked": (MASKED, {}, {"dueling": True}),
    "mixed": (MIXED, {}, {}),
    "image": (IMAGE, {}, {"dueling": True}),
    "noisy_image": (IMAGE, {"hidden_sizes": [16]}, {"noisy": True, "returns": "qr", "n_quantiles": 3}),
    "user": (SPACE, {"network": Bare, "width": 4}, {"returns": "c51"}),
}


def observe(space: spaces.Space[Any], count: int) -> Tree:
    space.seed(0)
    return tree_map(
        lambda *leaves: torch.as_tensor(np.stack(leaves)), *[space.sample() for _ in range(count)]
    )


@pytest.mark.parametrize(
    ("name", "normalised"),
    [(name, norm) for name in CASES for norm in (False, True) if not (norm and CASES[name][0] is IMAGE)],
)
def test_frozen_equals_the_model(name: str, normalised: bool) -> None:
    space, policy, options = CASES[name]
    norm = None
    if normalised:
        norm = ObservationNormalizer(space)
        norm.accumulate(observe(space, 64), torch.ones(64, dtype=torch.bool))
        norm.merge()
    actions = ACTIONS if space is MASKED else THREE
    learner = make(space, actions, policy, normalizer=norm, **options)
    obs, model = observe(space, 6), learner.model
    frozen, generator = model.policy.frozen(), torch.Generator().manual_seed(0)
    for _ in range(2):  # the second time after a step that changed the parameters
        model.eval()
        with torch.no_grad():
            expected = model.q(obs)
            out = model(obs)
        model.train()
        with torch.inference_mode():
            mode, state = frozen.mode(obs)
            assert torch.equal(mode, out.dist.mode()) and state is None
            if not noisy_layers(model):
                assert torch.allclose(frozen.params(obs)[0], expected, atol=1e-5)
                assert torch.equal(frozen.sample(obs)[0], mode)
            else:
                frozen.noise(1, 1, generator)
                assert not torch.allclose(frozen.params(obs)[0], expected, atol=1e-5)
        assert torch.allclose(out.value, expected.gather(-1, mode[:, None])[:, 0])
        with torch.no_grad():
            for parameter in learner.model.network.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))


def test_plain_networks_act_flat() -> None:
    for name, ways in (
        ("plain", 1),
        ("dueling", 2),
        ("c51", 1),
        ("noisy", 1),
        ("rainbow", 2),
        ("mixed", 1),
        ("image", 2),
    ):
        space, policy, options = CASES[name]
        frozen = make(space, THREE, policy, **options).model.policy.frozen()
        assert [type(flat) for flat in frozen._acting._flats] == [FlatMLP] * ways, name


def test_training_mode_and_dropout_of_users_modules_survive_acting() -> None:
    learner = make(policy={"network": Bare}, actions=THREE)
    frozen, obs = learner.model.policy.frozen(), torch.randn(50, 5)
    learner.train()
    assert torch.equal(frozen.params(obs)[0], frozen.params(obs)[0])
    assert learner.model.training and not learner.target.module.training
    batch = chain()
    torch.manual_seed(0)
    assert torch.equal(learner.targets(batch).target, learner.targets(batch).target)  # evaluation mode
    learner.update(batch)
    assert learner.model.training


def test_noise_is_constant_within_a_chunk_and_redrawn_at_its_beginning() -> None:
    learner = make(noisy=True)
    actor = Actor(learner.model.policy.frozen(), SampleExplorer(SampleExplorerConfig()))
    obs, generator = torch.randn(4, 5), torch.Generator().manual_seed(0)
    seen = []
    for _ in range(2):
        assert actor.noise(3, 4, generator) is None
        first = actor.policy.params(obs)[0]
        learner.update(chain())  # a learner's own draws and steps do not reach the chunk
        assert torch.equal(actor.policy.params(obs)[0], first)
        seen.append(first)
    assert not torch.allclose(*seen)
    generator.manual_seed(0)
    again = Actor(make(noisy=True).model.policy.frozen(), SampleExplorer(SampleExplorerConfig()))
    again.noise(3, 4, generator)
    assert torch.equal(again.policy.params(obs)[0], seen[0])


def test_a_copied_actor_keeps_its_version() -> None:
    for name in ("plain", "rainbow", "iqn"):
        space, policy, options = CASES[name]
        learner = make(space, ACTIONS, policy, **options)
        actor = Actor(learner.model.policy.frozen(), SampleExplorer(SampleExplorerConfig()))
        actor.noise(1, 1, torch.Generator().manual_seed(3))
        kept, obs = copy.deepcopy(actor), torch.randn(4, 5)
        with torch.no_grad():
            before = actor.policy._mean(obs).clone(), actor.policy.params(obs)[0].clone()
        for _ in range(3):
            learner.update(chain())
        with torch.no_grad():
            assert not torch.equal(actor.policy._mean(obs), before[0])
            assert torch.equal(kept.policy._mean(obs), before[0])
            assert torch.equal(kept.policy.params(obs)[0], before[1])
            kept.noise(1, 1, torch.Generator().manual_seed(4))
        if noisy_layers(learner.model):
            assert not torch.equal(kept.policy.params(obs)[0], before[1])


def test_noisy_layer_by_hand() -> None:
    layer = NoisyLinear(2, 1, sigma=0.5)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.bias.fill_(3.0)
        layer.weight_sigma.fill_(0.1)
        layer.bias_sigma.fill_(0.2)
        layer.noise_in.copy_(torch.tensor([2.0, -1.0]))
        layer.noise_out.fill_(3.0)
    x = torch.tensor([[1.0, 1.0]])
    # weight 1 + .1·6, 2 − .1·3; bias 3 + .2·3
    assert layer(x).item() == pytest.approx(1.6 + 1.7 + 3.6)
    assert layer.eval()(x).item() == 6.0


def test_noisy_layer_starts_as_the_paper_says() -> None:
    layer = NoisyLinear(64, 8, sigma=0.4)
    assert layer.weight.abs().max() <= 1 / 8 and layer.bias.abs().max() <= 1 / 8
    assert torch.equal(layer.weight_sigma, torch.full((8, 64), 0.05))
    x = torch.randn(3, 64)
    assert torch.equal(layer(x), layer.eval()(x))  # no noise before the first draw
    layer.train()
    redraw([layer], torch.Generator().manual_seed(0))
    normal = torch.randn(72, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(layer.noise_in, normal[:64].sign() * normal[:64].abs().sqrt())
    layer(x).sum().backward()
    assert layer.weight_sigma.grad is not None and layer.weight_sigma.grad.abs().max() > 0


def test_without_noise_shares_the_means() -> None:
    module = make_noisy(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 2))), 0.5)
    plain = without_noise(module)
    x = torch.randn(5, 3)
    redraw(noisy_layers(module), None)
    assert torch.equal(plain(x), module.eval()(x))
    with torch.no_grad():
        noisy_layers(module)[0].weight.mul_(2.0)
    assert torch.equal(plain(x), module(x))
    assert not noisy_layers(plain) and len(noisy_layers(module)) == 2


def test_both_sections_name_the_one_network() -> None:
    from uniarena.learners.off_policy.dqn_config import DQNConfig
    from uniarena.seeding import Streams
    from uniarena.values.q_model import build_q_model

    def build(policy: dict[str, Any], value: dict[str, Any]) -> Any:
        return build_q_model(
            SPACE, ACTIONS, Section(policy), Section(value), None, Streams(0), cfg=DQNConfig()
        )

    a = build({"hidden_sizes": [8]}, {}).state_dict()
    b = build({}, {"hidden_sizes": [8]}).state_dict()
    assert all(torch.equal(x, y) for x, y in zip(a.values(), b.values(), strict=True))
    with pytest.raises(ConfigError, match="set it in one place"):
        build({"hidden_sizes": [8]}, {"hidden_sizes": [4]})
    with pytest.raises(ConfigError, match="distribution"):
        build({"distribution": "beta"}, {})


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ({"network": Bare}, {"dueling": True}, "makes itself"),
        ({"network": Bare}, {"returns": "iqn"}, "makes itself"),
        ({"network": Bare, "act_dim": 5}, {}, r"gave \(3, 5\) for 3 observations; expected \(3, 3\)"),
    ],
)
def test_users_modules_that_do_not_fit(policy: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(actions=THREE, policy=policy, **options)


def test_a_mask_of_another_width_is_refused() -> None:
    with pytest.raises(ConfigError, match="action_mask"):
        make(MASKED, THREE)


def test_global_streams_are_left_alone_and_seeds_count() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a, b, c = make(seed=0, noisy=True), make(seed=0, noisy=True), make(seed=1, noisy=True)
    assert torch.equal(torch.get_rng_state(), before)
    pairs = [list(x.model.parameters()) for x in (a, b, c)]
    assert all(torch.equal(x, y) for x, y in zip(pairs[0], pairs[1], strict=True))
    assert not torch.equal(pairs[0][0], pairs[2][0])


def test_behaviour_of_a_greedy_policy_has_a_density() -> None:
    learner = make()
    explorer = SampleExplorer(SampleExplorerConfig())
    frozen, obs = learner.model.policy.frozen(), torch.randn(2, 3, 5)
    action = frozen.mode(obs.flatten(0, 1))[0].reshape(2, 3)
    rows = Batch((2, 3), obs=obs, action=action, is_first=torch.zeros(2, 3, dtype=torch.bool))
    assert torch.equal(explorer.behaviour_log_prob(frozen, rows), torch.zeros(2, 3))
