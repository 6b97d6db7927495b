"""The DQN learner on batches made by hand: targets, learning, priorities, resuming."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tests.off_policy.chain import GAMMA, MASKED, SPACE, chain, make, masked, optimal_q
from uniarena.batch import Batch
from uniarena.config import ConfigError, parse
from uniarena.envs.actions import ActionMap
from uniarena.explorers.actor import Actor
from uniarena.explorers.epsilon_greedy import EpsilonGreedy, EpsilonGreedyConfig
from uniarena.learners.off_policy.dqn import DQN
from uniarena.learners.off_policy.dqn_config import DQNConfig
from uniarena.learners.off_policy.dqn_presets import C51, IQN, QRDQN, RAINBOW
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.optim import Minimize
from uniarena.seeding import Streams
from uniarena.values.q_model import build_q_model

RANGE = {"v_min": -0.5, "v_max": 1.5}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "squared": {"td_clip": None},
    "double": {"double": True},
    "dueling": {"dueling": True},
    "noisy": {"noisy": True},
    "soft": {"tau": 0.02},
    "c51": {"returns": "c51", **RANGE},
    "qr": {"returns": "qr", "n_quantiles": 16},
    "iqn": {"returns": "iqn", "n_fractions": 16, "n_quantiles": 16},
    "iqn_double": {"returns": "iqn", "n_fractions": 16, "double": True},
    "rainbow": {"returns": "c51", "double": True, "dueling": True, "noisy": True, **RANGE},
    "qr_rainbow": {"returns": "qr", "n_quantiles": 16, "double": True, "dueling": True, "noisy": True},
}


class Table(nn.Module):
    """Q as a table: whatever is written into it."""

    def __init__(self, obs_dim: int, act_dim: int) -> None:
        super().__init__()
        self.table = nn.Linear(obs_dim, act_dim, bias=False)

    def forward(self, obs: Tensor) -> Tensor:
        return self.table(obs)


def table(q: Tensor, target: Tensor, **options: Any) -> DQN:
    """A learner whose online and target Q-values `[states, actions]` are known."""
    learner = make(policy={"network": Table}, **options)
    with torch.no_grad():
        learner.model.network.encoder.module.table.weight.copy_(q.t())
        learner.target.module.encoder.module.table.weight.copy_(target.t())
    return learner


ONLINE = torch.tensor([[1.0, 2.0], [4.0, 3.0], [0.0, 0.5], [7.0, 6.0], [0.0, 9.0]])
TARGET = torch.tensor([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0], [70.0, 80.0], [90.0, 99.0]])


def test_target_is_the_target_network_s_maximum() -> None:
    batch = chain()
    found = table(ONLINE, TARGET).targets(batch).target[:, 0]
    best = [20.0, 40.0, 20.0, 60.0, 40.0, 80.0, 60.0, 99.0, 80.0]
    assert torch.allclose(
        found, torch.tensor([*(GAMMA * value for value in best), 1.0])
    )  # the last terminates


def test_double_q_target_is_of_the_online_network_s_choice() -> None:
    found = table(ONLINE, TARGET, double=True).targets(chain()).target[:, 0]
    chosen = [20.0, 30.0, 20.0, 60.0, 30.0, 70.0, 60.0, 99.0, 70.0]  # online prefers: 1, 0, 1, 0, 1
    assert torch.allclose(found, torch.tensor([*(GAMMA * value for value in chosen), 1.0]))


def test_masks_count_in_targets() -> None:
    learner = make(MASKED, policy={"network": Table})
    with torch.no_grad():
        learner.target.module.encoder.module.table.weight.copy_(TARGET.t())
    batch = masked(chain(), torch.tensor([1, 0], dtype=torch.int8))
    found = learner.targets(batch).target[:, 0]
    only_left = [10.0, 30.0, 10.0, 50.0, 30.0, 70.0, 50.0, 90.0, 70.0]
    assert torch.allclose(found, torch.tensor([*(GAMMA * value for value in only_left), 1.0]))


def test_n_step_discount_and_truncation_need_nothing_of_the_learner() -> None:
    batch = chain()[:1].replace(discount=torch.tensor([GAMMA**3]), reward=torch.tensor([2.5]))
    assert table(ONLINE, TARGET).targets(batch).target.item() == pytest.approx(2.5 + GAMMA**3 * 20.0)


def test_target_clip() -> None:
    found = table(ONLINE, TARGET, target_clip=(0.0, 30.0)).targets(chain()).target[:, 0]
    assert found.max().item() == 30.0 and found[-1].item() == 1.0
    c51 = make(returns="c51", v_min=-2.0, v_max=2.0, target_clip=(0.0, 1.0))
    targets = c51.targets(chain()).target
    assert targets[:, c51.model.network.head.support < -0.05].sum() == 0.0
    assert targets[:, c51.model.network.head.support > 1.05].sum() == 0.0


def test_loss_and_priority_by_hand() -> None:
    learner = table(ONLINE, TARGET)
    rows = chain()[torch.tensor([0, 9])].replace(
        reward=torch.tensor([0.0, 1.0]), discount=torch.zeros(2), weight=torch.tensor([1.0, 0.5])
    )
    # Q: 1 and 9, targets 0 and 1, errors −1 and −8; Huber: .5 and 7.5; weighted mean: (.5 + 3.75) / 2
    loss, metrics = learner.loss(learner.targets(rows))
    assert loss.item() == pytest.approx(2.125)
    assert metrics["surprise"].tolist() == [1.0, 8.0]
    assert metrics["q"].item() == 5.0 and metrics["target"].item() == 0.5
    update = learner.update(rows)
    assert update.priority is not None and update.priority.tolist() == [1.0, 8.0]
    assert {"q", "target", "td_error", "loss", "grad_norm", "learning_rate"} <= set(update.metrics)
    assert all(value.dim() == 0 and not value.requires_grad for value in update.metrics.values())


def test_c51_priority_is_the_divergence_from_the_target() -> None:
    learner = make(returns="c51", **RANGE)
    batch = learner.targets(chain())
    _, metrics = learner.loss(batch)
    logits = learner.model.network(batch.obs)[torch.arange(10), batch.action]
    kl = nn.functional.kl_div(logits.log_softmax(-1), batch.target, reduction="none").sum(-1)
    assert torch.allclose(metrics["surprise"], kl, atol=1e-5)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_variant_learns_the_chain(name: str) -> None:
    learner = make(**{"target_update_updates": 20 if "tau" not in OPTIONS[name] else None, **OPTIONS[name]})
    batch = chain()
    for _ in range(600):
        learner.update(batch)
    actor = learner.model.policy.frozen()
    with torch.no_grad():
        q = learner.model.eval().q(torch.eye(5))
        action, _ = actor.mode(torch.eye(5))
    assert action.tolist() == [1] * 5
    assert (q - optimal_q()).abs().max() < 0.12, q


def test_a_batch_normalised_inside_of_the_model_learns_alike() -> None:
    normalizer = ObservationNormalizer(SPACE)
    normalizer.accumulate(torch.eye(5) * 3.0 + 100.0, torch.ones(5, dtype=torch.bool))
    normalizer.merge()
    learner = make(normalizer=normalizer, target_update_updates=20)
    batch = chain()
    batch = batch.replace(obs=batch.obs * 3.0 + 100.0, next_obs=batch.next_obs * 3.0 + 100.0)
    for _ in range(500):
        learner.update(batch)
    assert (learner.model.q(torch.eye(5) * 3.0 + 100.0) - optimal_q()).abs().max() < 0.1
    assert "normalizer" not in " ".join(learner.target.state_dict())


@pytest.mark.parametrize("name", OPTIONS)
def test_saving_and_loading_continues_bit_for_bit(name: str) -> None:
    def rows(k: int) -> Batch:
        return chain()[torch.randint(10, (8,), generator=torch.Generator().manual_seed(k))]

    straight = make(target_update_updates=7 if "tau" not in OPTIONS[name] else None, **OPTIONS[name])
    for k in range(10):
        straight.update(rows(k))
    state = copy.deepcopy(straight.state_dict())
    for k in range(10, 20):
        straight.update(rows(k))
    again = make(seed=5, **OPTIONS[name], target_update_updates=7 if "tau" not in OPTIONS[name] else None)
    again.load_state_dict(state)
    for k in range(10, 20):
        again.update(rows(k))
    for (key, a), b in zip(straight.state_dict().items(), again.state_dict().values(), strict=True):
        if isinstance(a, Tensor):
            assert torch.equal(a, b), key
    ours, theirs = straight.get_extra_state(), again.get_extra_state()
    assert torch.equal(ours["rng"], theirs["rng"])
    assert straight.target.updates == again.target.updates == 20


def test_two_learners_with_one_seed_agree() -> None:
    first, second = make(noisy=True, returns="iqn"), make(noisy=True, returns="iqn")
    for _ in range(3):
        assert torch.equal(first.update(chain()).metrics["loss"], second.update(chain()).metrics["loss"])


def test_target_network_moves_when_due() -> None:
    def distance(learner: DQN) -> float:
        pairs = zip(learner.target.module.parameters(), learner.model.network.parameters(), strict=True)
        return max(float((a - b).detach().abs().max()) for a, b in pairs)

    periodic = make(target_update_env_steps=12, updates_per_env_step=0.25)  # every third update
    moved = []
    for _ in range(6):
        periodic.update(chain())
        moved.append(distance(periodic) == 0.0)
    assert moved == [False, False, True, False, False, True]
    assert make().cfg.target_interval == 250  # 1000 env steps, an update every 4
    assert make(tau=0.01).cfg.target_interval == 1
    assert make(tau=0.5, target_update_updates=3).cfg.target_interval == 3


def test_gradient_is_clipped_to_the_norm() -> None:
    learner = table(ONLINE, -1000.0 * TARGET, max_grad_norm=1e-3, td_clip=None, learning_rate=1.0)
    norms: list[float] = []
    step = learner.optimizer.step

    def spy() -> None:
        norms.append(float(torch.cat([g.flatten() for g in learner.optimizer.gradients().values()]).norm()))
        step()

    learner.optimizer.step = spy  # type: ignore[method-assign]
    learner.update(chain())
    assert norms[0] == pytest.approx(1e-3, rel=1e-3)


def test_discrete_actions_with_another_start_are_counted_from_zero() -> None:  # case B13
    env_space = spaces.Discrete(2, start=-1)
    action_map = ActionMap(env_space)
    learner = make(actions=action_map.policy_space, target_update_updates=20)
    for _ in range(300):
        learner.update(chain())
    explorer = EpsilonGreedy(EpsilonGreedyConfig(epsilon=0.5), action_map.policy_space)
    actor = Actor(learner.model.policy.frozen(), explorer)
    noise = actor.noise(1, 5, torch.Generator().manual_seed(0))
    for action in (actor.act(torch.eye(5), noise=noise[0])[0], actor.mode(torch.eye(5))[0]):
        assert all(env_space.contains(one) for one in action_map(action.numpy()))
    assert action_map(actor.mode(torch.eye(5))[0]).tolist() == [0] * 5  # right


def test_other_actions_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"must be Discrete.*[\s\S]*use ppo"):
        make(actions=spaces.MultiDiscrete([2, 2]))
    with pytest.raises(ConfigError, match="must be Discrete"):
        make(actions=spaces.Box(-1.0, 1.0, (2,)))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tau": 0.0}, "tau"),
        ({"gamma": 1.5}, "gamma"),
        ({"target_clip": [1, 0]}, "low below high"),
        ({"target_update_updates": 3, "target_update_env_steps": 4}, "keep one"),
        ({"returns": "c51", "v_min": 2.0, "v_max": 1.0}, "v_max"),
        ({"returns": "quantiles"}, "qr"),
        ({"duelling": True}, "dueling"),
    ],
)
def test_wrong_options_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(DQNConfig, keys, "learner")


def test_presets() -> None:
    rainbow = parse(RAINBOW.Config, {}, "learner")
    assert (rainbow.returns, rainbow.n_atoms, rainbow.v_min, rainbow.v_max) == ("c51", 51, -10.0, 10.0)
    assert rainbow.double and rainbow.dueling and rainbow.noisy and rainbow.n_step == 3
    assert rainbow.optimizer.eps == 1.5e-4 and rainbow.target_interval == 2000
    assert parse(RAINBOW.Config, {"target_update_updates": 7}, "learner").target_interval == 7, "no conflict"
    assert RAINBOW.default_parts["buffer"]["type"] == "prioritized"
    assert RAINBOW.default_parts["explorer"] == {"type": "epsilon_greedy", "epsilon": 0.0}
    assert C51.default_parts == DQN.default_parts
    for preset, returns in ((C51, "c51"), (QRDQN, "qr"), (IQN, "iqn"), (RAINBOW, "c51")):
        cfg = parse(preset.Config, {"n_quantiles": 8, "n_fractions": 8}, "learner")
        assert cfg.returns == returns
        model = preset.build_model(SPACE, spaces.Discrete(2), {}, {}, None, Streams(0), cfg=cfg)
        learner = preset(model, cfg, Minimize(cfg.max_grad_norm), torch.Generator().manual_seed(0))
        assert torch.isfinite(learner.update(chain()).metrics["loss"])


def test_learning_rate_follows_its_schedule() -> None:
    cfg = parse(DQNConfig, {"learning_rate": {"start": 1e-3, "end": 0.0}}, "learner")
    model = build_q_model(SPACE, spaces.Discrete(2), {}, {}, None, Streams(0), cfg=cfg)
    learner = DQN(model, cfg, Minimize(), torch.Generator().manual_seed(0))
    learner.set_progress(0.5)
    assert learner.update(chain()).metrics["learning_rate"].item() == pytest.approx(5e-4)


@pytest.mark.parametrize("td_clip", [None, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_hand_written_loss_is_autograd_s(td_clip: float | None, weighted: bool) -> None:
    by_hand, recorded = (make(policy={"hidden_sizes": [8, 8]}, td_clip=td_clip, seed=3) for _ in range(2))
    recorded._by_hand = None
    batch = chain()
    if weighted:
        batch = batch.replace(weight=torch.linspace(0.1, 1.0, batch.shape[0]))
    for _ in range(5):
        found, expected = by_hand.update(batch), recorded.update(batch)
        assert found.metrics.keys() == expected.metrics.keys()
        for name, value in found.metrics.items():
            torch.testing.assert_close(value, expected.metrics[name], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(found.priority, expected.priority, rtol=1e-6, atol=1e-7)
    for a, b in zip(by_hand.model.parameters(), recorded.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_a_hook_on_a_layer_gets_its_graph() -> None:
    learner, seen = make(policy={"hidden_sizes": [8]}), []
    learner.model.network.torso.layers[1].register_full_backward_hook(lambda *_: seen.append(True))
    learner.update(chain())
    assert seen
