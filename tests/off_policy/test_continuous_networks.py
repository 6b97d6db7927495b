"""What the continuous learners are made of: ensembles, targets, scaled actions, the lean Adam."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from uniarena.config import ConfigError, parse
from uniarena.learners.off_policy.sac import SAC
from uniarena.nets.ensemble import EnsembleMLP, frozen, orthogonal_members_
from uniarena.optim.fused_adam import FusedAdam
from uniarena.optim.targets import Target
from uniarena.policies.action_scale import ActionScale
from uniarena.seeding import Streams
from uniarena.values.ensemble import UserCritics


def alone(ensemble: EnsembleMLP, member: int) -> nn.Sequential:
    """One member as ordinary layers."""
    parts: list[nn.Module] = []
    for index, layer in enumerate(ensemble.layers):
        linear = nn.Linear(layer.weight.shape[1], layer.weight.shape[2])
        linear.weight.data, linear.bias.data = layer.weight.data[member].T, layer.bias.data[member, 0]
        parts.append(linear)
        if index < len(ensemble.layers) - 1:
            if ensemble.norms:
                norm = nn.LayerNorm(linear.out_features)
                norm.weight.data = ensemble.norms[index].weight.data[member, 0]
                norm.bias.data = ensemble.norms[index].bias.data[member, 0]
                parts.append(norm)
            parts.append(nn.ReLU())
    return nn.Sequential(*parts)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_an_ensemble_is_its_members_side_by_side(outputs: int, layer_norm: bool) -> None:
    torch.manual_seed(0)
    ensemble = EnsembleMLP(3, 5, outputs, (8, 6), layer_norm=layer_norm)
    for norm in ensemble.norms:
        nn.init.normal_(norm.weight)
    x = torch.randn(4, 5, requires_grad=True)
    apart = torch.stack([alone(ensemble, member)(x) for member in range(3)])
    together = ensemble(x)
    assert together.shape == (3, 4, outputs)
    torch.testing.assert_close(together, apart)
    torch.testing.assert_close(ensemble(x.expand(3, -1, -1)), together)
    gradients = [torch.autograd.grad(q.square().sum(), x)[0] for q in (together, apart)]
    torch.testing.assert_close(*gradients)


def test_a_subset_is_those_members() -> None:
    ensemble = EnsembleMLP(4, 5, 1, (8,), layer_norm=True)
    x, subset = torch.randn(6, 5), torch.tensor([2, 0])
    torch.testing.assert_close(ensemble(x, subset=subset), ensemble(x)[subset])


def test_members_differ_and_start_like_linear_layers() -> None:
    torch.manual_seed(0)
    first = EnsembleMLP(2, 64, 1, (512,)).layers[0].weight
    assert not torch.equal(first[0], first[1])
    assert first.abs().max().item() <= 1 / 8
    assert first.std().item() == pytest.approx(1 / 8 / math.sqrt(3), rel=0.02)


def test_orthogonal_members() -> None:
    ensemble = EnsembleMLP(2, 6, 1, (6,))
    orthogonal_members_(ensemble)
    for weight in ensemble.layers[0].weight.detach():
        torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(6), atol=1e-5, rtol=1e-5)


def test_dropout_needs_a_generator_repeats_and_keeps_the_mean() -> None:
    ensemble = EnsembleMLP(2, 4, 1, (256,), dropout=0.25)
    x = torch.randn(3, 4)
    assert torch.equal(ensemble(x), ensemble(x))
    draws = [ensemble(x, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    generator = torch.Generator().manual_seed(0)
    mean = torch.stack([ensemble(x, generator) for _ in range(3000)]).mean(0)
    torch.testing.assert_close(mean, ensemble(x), atol=0.03, rtol=0.0)


@pytest.mark.parametrize(
    ("options", "match"),
    [({"members": 0}, "at least one"), ({"activation": "step"}, "relu"), ({"dropout": 1.0}, "below 1")],
)
def test_impossible_ensembles_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        EnsembleMLP(**{"members": 2, "in_dim": 3, "out_dim": 1, **options})


def test_frozen_parameters_get_no_gradient_but_pass_it_on() -> None:
    ensemble = EnsembleMLP(2, 3, 1, (4,))
    x = torch.randn(5, 3, requires_grad=True)
    with frozen(list(ensemble.parameters())):
        q = ensemble(x)
    q.sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0
    assert all(p.grad is None and p.requires_grad for p in ensemble.parameters())


# -- targets ---------------------------------------------------------------------------------------------------------
def test_soft_targets_move_a_share_of_the_way() -> None:
    source = nn.Linear(2, 1)
    target = Target(source, tau=0.25)
    before, x = copy.deepcopy(source), torch.randn(3, 2)
    with torch.no_grad():
        source.weight += 4.0
    target.update()
    torch.testing.assert_close(target.module.weight, before.weight + 1.0)
    assert not target(x).requires_grad
    target.reset()
    assert torch.equal(target.module.weight, source.weight)


def test_periodic_targets_copy_every_so_often_buffers_included() -> None:
    source = nn.BatchNorm1d(2)
    target = Target(source, tau=1.0, interval=3)
    source.running_mean += 1.0
    source.num_batches_tracked += 5
    moved = []
    for _ in range(6):
        target.update()
        moved.append(float(target.module.running_mean[0]))
    assert moved == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert int(target.module.num_batches_tracked) == 5


def test_a_target_stays_in_evaluation_mode_and_saves_its_count() -> None:
    source = nn.Dropout(0.5)
    target = Target(source, interval=2)
    target.train()
    assert torch.equal(target(torch.ones(8)), torch.ones(8))
    target.update()
    other = Target(source, interval=2)
    other.load_state_dict(target.state_dict())
    assert other.updates == 1
    assert list(nn.ModuleDict({"source": source, "target": target}).state_dict()) == ["target._extra_state"]


@pytest.mark.parametrize("options", [{"tau": 0.0}, {"tau": 1.5}, {"interval": 0}])
def test_impossible_targets_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Target(nn.Linear(1, 1), **options)


# -- Adam ------------------------------------------------------------------------------------------------------------
def test_the_lean_adam_is_torchs_own() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    settings = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-5, "weight_decay": 0.1}
    pair = [
        (ours, FusedAdam(ours.parameters(), **settings)),
        (theirs, torch.optim.Adam(theirs.parameters(), fused=True, **settings)),
    ]
    for step in range(6):
        x = torch.randn(7, 5)
        for module, optimizer in pair:
            optimizer.zero_grad()
            module(x).square().sum().backward()
            if step == 3:
                module.bias.grad = None  # a parameter that took no part
            optimizer.step()
        assert torch.equal(ours.weight, theirs.weight) and torch.equal(ours.bias, theirs.bias)
    saved, other = pair[0][1].state_dict(), pair[1][1].state_dict()
    assert [s.keys() for s in saved["state"].values()] == [s.keys() for s in other["state"].values()]


def test_the_lean_adam_continues_from_a_state() -> None:
    torch.manual_seed(0)
    first = nn.Linear(2, 1)
    optimizer = FusedAdam(first.parameters())

    def step(module: nn.Module, optimizer: FusedAdam) -> None:
        optimizer.zero_grad()
        module(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    step(first, optimizer)
    second = copy.deepcopy(first)
    resumed = FusedAdam(second.parameters())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for pair in ((first, optimizer), (second, resumed)):
        step(*pair)
    assert torch.equal(first.weight, second.weight)


# -- actions ---------------------------------------------------------------------------------------------------------
NESTED = spaces.Dict(
    {"b": spaces.Box(-1.0, 1.0, (2, 2)), "a": spaces.Box(np.float32([0, -10]), np.float32([4, 10]))}
)


def test_actions_are_scaled_dimension_by_dimension_and_back() -> None:
    scale = ActionScale(NESTED)
    action = {"a": torch.tensor([[0.0, 5.0]]), "b": torch.tensor([[[1.0, 0.0], [0.5, -1.0]]])}
    row = scale(action)
    assert row.tolist() == [[-1.0, 0.5, 1.0, 0.0, 0.5, -1.0]]
    back = scale.inverse(row)
    assert all(torch.equal(back[key], action[key]) for key in action)
    assert scale.log_half == pytest.approx(math.log(2.0 * 10.0))


def test_a_dimension_without_bounds_keeps_its_units() -> None:
    space = spaces.Box(np.float32([-np.inf, -2.0]), np.float32([np.inf, 2.0]))
    scale = ActionScale(space)
    assert scale(torch.tensor([[7.0, 1.0]])).tolist() == [[7.0, 0.5]]
    assert scale.perturb(torch.tensor([[7.0, 1.0]]), torch.tensor([[1.0, 3.0]])).tolist() == [[8.0, 2.0]]
    with pytest.raises(ConfigError, match=r"dimension 0 of .* has none") as caught:
        scale.require_bounds("this")
    assert "finite action bounds" in str(caught.value)


def test_a_dimension_without_a_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="dimension 1 has equal bounds"):
        ActionScale(spaces.Box(np.float32([-1, 3]), np.float32([1, 3])))


# -- modules of users ------------------------------------------------------------------------------------------------
class OwnCritic(nn.Module):
    """Q(s, a) of a user."""

    def __init__(self, obs_dim: int, act_dim: int, width: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs_dim + act_dim, width), nn.Tanh(), nn.Linear(width, 1))
        self.register_buffer("offset", torch.tensor(0.5))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat([obs, action], -1)) + self.offset


class WideCritic(OwnCritic):
    """Two numbers where one is due."""

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return super().forward(obs, action).expand(-1, 2)


OBS, ACT = spaces.Box(-1.0, 1.0, (3,)), spaces.Box(-2.0, 2.0, (2,))


def model_of(value: dict[str, Any], policy: dict[str, Any] | None = None, **fields: Any) -> Any:
    cfg = parse(SAC.Config, fields, "learner")
    return SAC.build_model(OBS, ACT, policy or {}, value, None, Streams(0), cfg=cfg)


def test_a_users_critic_is_an_ensemble_in_one_call() -> None:
    model = model_of({"network": OwnCritic, "width": 4}, n_critics=3)
    body = model.q.body
    assert isinstance(body, UserCritics)
    obs, action = torch.randn(5, 3), torch.randn(5, 2)
    q = model.q(obs, action)
    assert q.shape == (3, 5)
    for member in range(3):
        own = OwnCritic(3, 2, 4)
        own.load_state_dict(
            {name: stack[member] for name, stack in zip(body._names, body.stacked, strict=True)}, strict=False
        )
        torch.testing.assert_close(q[member], own(obs, action)[:, 0])
    torch.testing.assert_close(model.q(obs, action, subset=torch.tensor([1])), q[1:2])
    assert not torch.equal(q[0], q[1])


@pytest.mark.parametrize(
    ("value", "fields", "match"),
    [
        ({"network": WideCritic}, {}, r"WideCritic gave Q of shape \(3, 2\)"),
        ({"network": nn.Identity}, {}, "cannot be called as a critic"),
        ({"network": OwnCritic}, {"layer_norm": True}, "built-in critics"),
        ({"network": OwnCritic, "depth": 3}, {}, "depth"),
    ],
)
def test_unfit_critics_are_answered(value: dict[str, Any], fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        model_of(value, **fields)


def test_critics_take_what_the_policy_section_says_unless_told_otherwise() -> None:
    assert model_of({}).q.body.layers[0].weight.shape == (2, 5, 256)
    narrow = model_of({}, policy={"hidden_sizes": [7], "activation": "tanh"})
    assert narrow.q.body.layers[0].weight.shape == (2, 5, 7)
    own = model_of({"hidden_sizes": [9]}, policy={"hidden_sizes": [7]})
    assert own.q.body.layers[0].weight.shape == (2, 5, 9)
    assert own.policy.network.actor.output.in_features == 7


def test_value_of_raw_observations_and_actions() -> None:
    model = model_of({})
    obs, action = torch.randn(4, 3), torch.tensor([[2.0, -2.0]]).expand(4, 2)
    torch.testing.assert_close(model.value(obs, action), model.q(obs, action / 2.0))


def test_an_initial_log_std_is_honoured() -> None:
    narrow, wide = (
        model_of({}, policy={"log_std_init": x}).policy(torch.zeros(1, 3))[0] for x in (-3.0, 0.0)
    )
    torch.testing.assert_close(narrow.base.log_std, wide.base.log_std - 3.0)
