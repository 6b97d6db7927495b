"""Models from spaces and config sections: towers, sharing, users' modules, what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.fakes import models
from uniarena.config import ConfigError
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.seeding import Streams
from uniarena.values.model import Model, build_model

BOX = spaces.Box(-1.0, 1.0, (4,))
ACTION = spaces.Box(-1.0, 1.0, (2,))
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
NESTED = spaces.Dict({"sensors": spaces.Dict({"pos": BOX, "cam": IMAGE}), "task": spaces.Discrete(4)})
FAKES = "tests.fakes.models"


def build(
    obs: spaces.Space = BOX,
    action: spaces.Space = ACTION,
    policy: dict | None = None,
    value: dict | None = None,
    normalizer: ObservationNormalizer | None = None,
    seed: int = 0,
) -> Model:
    return build_model(obs, action, policy or {}, {} if value is None else value, normalizer, Streams(seed))


def nested(count: int) -> dict:
    sensors = {
        "pos": torch.randn(count, 4),
        "cam": torch.randint(0, 256, (count, 36, 36, 3), dtype=torch.uint8),
    }
    return {"sensors": sensors, "task": torch.randint(0, 4, (count,))}


def test_default_towers_are_separate_and_of_the_stated_size():
    model = build()
    torso, value = model.policy.network.actor, model.value_net.body[1]
    assert [tuple(p.shape) for p in torso.parameters()] == [(64, 4), (64,), (64, 64), (64,), (2, 64), (2,)]
    assert tuple(value.output.weight.shape) == (1, 64)
    assert model.policy.head.log_std.tolist() == [0.0, 0.0]
    out = model(torch.randn(8, 4))
    assert out.dist.mean.shape == (8, 2) and out.value.shape == (8,) and out.state is None
    assert torch.equal(model.value(torch.ones(3, 4)), model(torch.ones(3, 4)).value)
    assert model(torch.randn(5, 8, 4)).value.shape == (5, 8)


def test_orthogonal_initialisation_with_the_papers_gains():
    model = build()
    hidden = model.policy.network.actor.torso.layers[2].weight.detach()
    torch.testing.assert_close(hidden @ hidden.T, 2.0 * torch.eye(64), atol=1e-5, rtol=0)
    last = model.policy.network.actor.output.weight.detach()
    torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(2), atol=1e-9, rtol=0)
    critic = model.value_net.body[1].output.weight.detach()
    assert critic.norm().item() == pytest.approx(1.0, abs=1e-5)
    plain = build(policy={"orthogonal": False}).policy.network.actor.output
    assert plain.bias.abs().max() > 0


def test_initialisation_follows_the_seed_and_leaves_global_generators_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, again, other = build(seed=3), build(seed=3), build(seed=4)
    assert torch.equal(torch.rand(3), expected)
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    user = {"network": f"{FAKES}:ParamsOnly"}
    a, b = build(policy=user), build(policy=user)
    assert torch.equal(a.policy.network.body.module.layer.weight, b.policy.network.body.module.layer.weight)
    wide = build(value={"hidden_sizes": [8]}, seed=3)
    assert torch.equal(next(wide.policy.parameters()), next(first.policy.parameters())), (
        "value does not move policy"
    )


def test_value_inherits_what_it_does_not_set():
    model = build(policy={"hidden_sizes": [32], "activation": "relu"}, value={"hidden_sizes": [16, 16]})
    critic = model.value_net.body[1].torso.layers
    assert critic[0].out_features == 16 and isinstance(critic[1], torch.nn.ReLU)
    assert build(policy={"hidden_sizes": [32]}).value_net.body[1].torso.out_dim == 32


def test_an_image_encoder_is_shared_and_counted_once():
    model = build(NESTED, spaces.Discrete(3))
    assert model.value_net is None and model.has_value
    out = model(nested(2))
    assert out.value.shape == (2,) and out.dist.logits.shape == (2, 3)
    convolutions = [p for p in model.parameters() if p.dim() == 4]
    assert len(convolutions) == 3 and len({id(p) for p in model.parameters()}) == len(
        list(model.parameters())
    )
    assert (
        model.policy.network.actor.output.in_features == 512 + 4 + 4
    )  # no hidden layers after an image encoder
    (out.value.sum() + out.dist.entropy().sum()).backward()
    assert all(p.grad is not None for p in model.parameters())
    obs = nested(2)
    torch.testing.assert_close(model.value(obs), model(obs).value)


def test_sharing_can_be_told():
    apart = build(NESTED, spaces.Discrete(3), {"share_encoder": False})
    assert apart.value_net is not None and len([p for p in apart.parameters() if p.dim() == 4]) == 6
    together = build(policy={"share_encoder": True})
    assert together.value_net is None and together(torch.ones(2, 4)).value.shape == (2,)
    different = build(NESTED, spaces.Discrete(3), {}, {"network": "impala_cnn"})
    assert different.value_net is not None
    with pytest.raises(ConfigError, match="cannot be shared") as error:
        build(NESTED, spaces.Discrete(3), {"share_encoder": True}, {"network": "impala_cnn"})
    assert error.value.path == "agent.policy.share_encoder"


def test_no_value_network_where_none_is_asked_for():
    model = build_model(BOX, ACTION, {}, None, None, Streams(0))
    assert not model.has_value and model(torch.ones(2, 4)).value is None
    with pytest.raises(RuntimeError, match="no value"):
        model.value(torch.ones(2, 4))


def test_observations_are_normalised_inside():
    norm = ObservationNormalizer(BOX)
    norm.accumulate(5 + torch.randn(100, 4), torch.ones(100, dtype=torch.bool))
    norm.merge()
    model, plain = build(normalizer=norm), build()
    obs = 5 + torch.randn(3, 4)
    torch.testing.assert_close(model(obs).dist.mean, plain(norm(obs)).dist.mean)
    torch.testing.assert_close(model.value(obs), plain.value(norm(obs)))
    assert model.normalizer is norm and sum("moments.mean" in name for name in model.state_dict()) == 1


def test_float64_and_integer_observations_meet_float32_parameters():  # case B17
    space = spaces.Box(-1.0, 1.0, (4,), np.float64)
    model = build(space, spaces.Box(-1.0, 1.0, (2,)))
    out = model(torch.randn(3, 4, dtype=torch.float64))
    assert out.dist.mean.dtype == out.value.dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert {p.dtype for p in build().parameters()} == {torch.float32}
    finally:
        torch.set_default_dtype(torch.float32)
    user = build(space, policy={"network": f"{FAKES}:Float64Net"})
    assert {p.dtype for p in user.parameters()} == {torch.float32}
    assert user(torch.randn(3, 4, dtype=torch.float64)).dist.mean.dtype == torch.float32


def test_a_mask_beside_the_observation_reaches_the_distribution():
    space = spaces.Dict({"obs": BOX, "action_mask": spaces.MultiBinary(3)})
    model = build(space, spaces.Discrete(3))
    obs = {"obs": torch.randn(2, 4), "action_mask": torch.tensor([[1, 0, 0], [0, 1, 1]], dtype=torch.int8)}
    out = model(obs)
    assert out.dist.entropy()[0].abs() < 1e-6 and out.dist.log_prob(torch.tensor([0, 0]))[1] < -1e30
    assert model.policy(obs)[0].mode()[0] == 0
    with pytest.raises(ConfigError, match=r"expected \(2,\)"):
        build(space, spaces.Discrete(2))
    with pytest.raises(ConfigError, match="expected none: only Discrete"):
        build(space, ACTION)


class TestUserModules:
    @pytest.mark.parametrize("action", [ACTION, spaces.Discrete(3)])
    def test_a_shared_trunk_with_tanh_in_the_action_branch(self, action):
        model = build(
            BOX, action, {"network": "examples.shared_trunk:SharedTrunk", "width": 32, "scale": 2.0}
        )
        module = model.policy.network.body.module
        assert module.scale == 2.0 and module.trunk[0].out_features == 32
        obs = torch.randn(6, 4)
        out = model(obs)
        value, params = module(obs)
        assert out.value.shape == (6,) and torch.equal(out.value, value.squeeze(-1))
        assert torch.equal(out.dist.mean if action is ACTION else out.dist.logits, params)
        assert torch.equal(model.value(obs), out.value)
        assert sum(p is module.trunk[0].weight for p in model.parameters()) == 1
        assert (
            (model.policy.head.log_std.shape == (2,))
            if action is ACTION
            else not list(model.policy.head.parameters())
        )
        assert model(torch.randn(5, 6, 4)).value.shape == (5, 6)
        (out.value.sum() + out.dist.entropy().sum() + out.dist.log_prob(out.dist.mode()).sum()).backward()
        assert all(p.grad is not None for p in model.parameters())

    def test_parameters_alone_get_a_value_network_beside_them(self):
        model = build(policy={"network": f"{FAKES}:ParamsOnly"})
        assert model.value_net is not None and model(torch.ones(2, 4)).value.shape == (2,)

    def test_twice_the_width_is_means_and_log_stds(self):
        model = build(policy={"network": f"{FAKES}:ParamsOnly", "factor": 2})
        assert model.policy.head.log_std is None
        out = model(torch.randn(3, 4))
        assert out.dist.mean.shape == out.dist.log_std.shape == (3, 2)

    def test_spaces_are_handed_over_and_the_observation_comes_as_a_tree(self):
        space = spaces.Dict({"pos": spaces.Box(-1.0, 1.0, (3,), np.float64), "task": spaces.Discrete(4)})
        model = build(space, spaces.Discrete(2), {"network": f"{FAKES}:DictReader"})
        module = model.policy.network.body.module
        assert module.action_space == spaces.Discrete(2) and module.observation_space == space
        model({"pos": torch.randn(3, 3, dtype=torch.float64), "task": torch.tensor([0, 1, 3])})
        assert module.seen == {"pos": torch.float32, "task": torch.int64}
        flat = build(space, spaces.Discrete(2), {"network": f"{FAKES}:ParamsOnly"})
        assert flat.policy.network.body.module.layer.in_features == 3 + 4

    def test_masks_stay_away_from_the_module(self):
        space = spaces.Dict({"obs": BOX, "action_mask": spaces.MultiBinary(3)})
        model = build(space, spaces.Discrete(3), {"network": f"{FAKES}:ParamsOnly"})
        assert model.policy.network.body.module.layer.in_features == 4
        obs = {"obs": torch.ones(2, 4), "action_mask": torch.tensor([[1, 0, 0]] * 2)}
        assert model(obs).dist.mode().tolist() == [0, 0]

    def test_a_class_may_be_given_from_python(self):
        assert build(policy={"network": models.ParamsOnly}).policy.network.param_dim == 2

    @pytest.mark.parametrize("flat", [True, False])
    def test_a_value_module_of_ones_own(self, flat):
        model = build(value={"network": f"{FAKES}:ValueOnly", "flat": flat})
        assert model(torch.ones(3, 4)).value.shape == (3,) and model.value(torch.ones(2, 3, 4)).shape == (
            2,
            3,
        )
        assert model.value(torch.ones(1, 4)).shape == (1,)

    @pytest.mark.parametrize(
        ("policy", "value", "message", "path"),
        [
            (
                {"network": f"{FAKES}:ParamsOnly", "widht": 3},
                {},
                "takes obs_dim, act_dim, factor",
                "agent.policy.widht",
            ),
            (
                {"network": f"{FAKES}:ParamsOnly", "hidden_sizes": [3]},
                {},
                "hidden_sizes",
                "agent.policy.hidden_sizes",
            ),
            (
                {"network": f"{FAKES}:ParamsOnly", "factor": 3},
                {},
                r"\[N, 6\]; for .*\[N, 2\]",
                "agent.policy.network",
            ),
            ({"network": f"{FAKES}:Swapped"}, {}, r"values of shape \(3, 2\)", "agent.policy.network"),
            ({"network": f"{FAKES}:not_a_module"}, {}, "expected a torch.nn.Module", "agent.policy.network"),
            ({"network": f"{FAKES}:Missing"}, {}, "Missing", "agent.policy.network"),
            ({"network": "mpl"}, {}, "no network 'mpl'", "agent.policy.network"),
            ({"network": f"{FAKES}:ParamsOnly", "gsde": True}, {}, "gsde", "agent.policy.gsde"),
            ({}, {"network": f"{FAKES}:ValueOnly", "width": 2}, r"expected \(3, 1\)", "agent.value.network"),
            (
                {"network": "examples.shared_trunk:SharedTrunk"},
                {"network": f"{FAKES}:ValueOnly"},
                "gives the value itself",
                "agent.value.network",
            ),
            ({"network": "nature_cnn"}, {}, "needs an image", "agent.policy.network"),
            ({"hidden_sizes": [64, 0]}, {}, "at least 1", "agent.policy.hidden_sizes"),
            ({"hiden_sizes": [64]}, {}, "hidden_sizes", "agent.policy.hiden_sizes"),
            ({}, {"activation": "tahn"}, "tanh", "agent.value.activation"),
        ],
    )
    def test_what_does_not_fit_is_answered_with_place_and_reason(self, policy, value, message, path):
        with pytest.raises(ConfigError, match=message) as error:
            build(policy=policy, value=value)
        assert error.value.path == path

    def test_a_parameter_that_nobody_gives_is_named(self):
        class Needy(torch.nn.Module):
            def __init__(self, obs_dim, depth):
                super().__init__()

        with pytest.raises(ConfigError, match="needs 'depth'") as error:
            build(policy={"network": Needy})
        assert error.value.path == "agent.policy.depth"

    def test_distributions_need_actions_they_are_made_for(self):
        with pytest.raises(ConfigError, match="Box actions"):
            build(BOX, spaces.Discrete(2), {"distribution": "beta"})
        unbounded = spaces.Box(-np.inf, np.inf, (2,))
        assert build(BOX, unbounded)(torch.ones(1, 4)).dist.mean.shape == (1, 2)  # case B15
        with pytest.raises(ConfigError, match="dimension 0"):
            build(BOX, unbounded, {"distribution": "squashed_gaussian"})


def test_a_users_policy_module_is_not_inherited_by_the_value():
    policy = {"network": f"{FAKES}:ParamsOnly", "factor": 2}
    model = build(policy=policy, value={"hidden_sizes": [8]})
    assert model.value_net.body[1].torso.out_dim == 8
    assert build(policy=policy).value_net.body[1].torso.out_dim == 64
    with pytest.raises(ConfigError, match="factor"):
        build(policy=policy, value={"factor": 2})


def test_images_of_any_declared_kind_reach_both_built_in_and_users_networks():
    grid = spaces.Box(0.0, 1.0, (10, 10, 4), bool)
    model = build(grid, spaces.Discrete(3), {"layout": "hwc"})
    out = model(torch.ones(2, 10, 10, 4, dtype=torch.bool))
    assert out.value.shape == (2,) and model.policy.network.encoder.out_dim == 128
    flat = build(grid, spaces.Discrete(3), {"network": f"{FAKES}:ParamsOnly"})
    assert flat.policy.network.body.module.layer.in_features == 400
    impala = build(
        NESTED, ACTION, {"encoders": {"sensors.cam": {"network": "impala_cnn"}}, "hidden_sizes": [16]}
    )
    assert impala.policy.network.encoder.out_dim == 256 + 4 + 4 and impala(nested(2)).dist.mean.shape == (
        2,
        2,
    )


def test_state_round_trips_into_a_model_of_another_seed():
    norm = [ObservationNormalizer(BOX) for _ in range(2)]
    norm[0].accumulate(torch.randn(9, 4), torch.ones(9, dtype=torch.bool))
    norm[0].merge()
    first, second = build(normalizer=norm[0], seed=1), build(normalizer=norm[1], seed=2)
    second.load_state_dict(first.state_dict())
    obs = torch.randn(5, 4)
    assert torch.equal(first(obs).dist.mean, second(obs).dist.mean)
    assert torch.equal(first.value(obs), second.value(obs))


def test_nine_thousand_action_dimensions():  # case B29
    model = build(action=spaces.Box(-1.0, 1.0, (9000,)))
    dist, value, _ = model(torch.randn(4, 4))
    log_prob = dist.log_prob(dist.sample(torch.Generator().manual_seed(0)))
    (log_prob.mean() + dist.entropy().mean() + value.mean()).backward()
    assert log_prob.isfinite().all() and all(p.grad.isfinite().all() for p in model.parameters())
