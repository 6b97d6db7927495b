"""What regularisers compute, against numbers worked out by hand, and whose parameters they move."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.fakes.envs import MaskObsEnv
from tests.regularizers.demos import Lock, record, secret
from uniarena import Agent, make_env
from uniarena.batch import Batch, tree_map
from uniarena.config import ConfigError
from uniarena.ops.offline import large_margin_loss
from uniarena.sampling import LocalSampler

SMALL = {"hidden_sizes": [8]}
DISCRETE, BOX = "CartPole-v1", "Pendulum-v1"
LEARNERS = {
    "ppo": DISCRETE,
    "a2c": BOX,
    "trpo": DISCRETE,
    "dqn": DISCRETE,
    "sac": BOX,
    "td3": BOX,
    "iql": BOX,
    "awac": DISCRETE,
}


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("demos")
    made = {env: record(gym.make(env), folder / f"{env}.npz") for env in (DISCRETE, BOX)}
    return made | {"lock": record(Lock(), folder / "lock.npz", secret)}


def make(kind: str, env: Any, terms: Any, seed: int = 0, **fields: Any) -> Agent:
    parts = {"memory": fields.pop("memory")} if "memory" in fields else {}
    if kind in ("ppo", "a2c", "trpo"):
        fields = {"n_steps": 16, "n_epochs": 1, **fields}
    else:
        fields = {"batch_size": 16, **({} if "bcq" in kind else {"learning_starts": 0}), **fields}
        parts["buffer"] = {"capacity": 200}
    policy = fields.pop("policy", SMALL)
    made = make_env(env, 2)
    try:
        learner = {"type": kind, **fields, **({} if terms is None else {"regularizers": terms})}
        agent = Agent.assemble(made, learner, policy=policy, parts=parts, seed=seed)
        sampler = LocalSampler(made, agent.streams, agent.learner.records)
        sampler.publish(agent.actor, 0)
        agent.observe(sampler.collect(32))
    finally:
        made.close()
    return agent


def term(agent: Agent, k: int = 0) -> Any:
    return agent.learner.minimize.regularizers.terms[k].regularizer  # type: ignore[union-attr]


def cloning(data: str, weight: Any = 1.0, **more: Any) -> dict[str, Any]:
    return {"type": "behavior_cloning", "data": {"path": data}, "weight": weight, **more}


def parameters(agent: Agent) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in agent.model.named_parameters()}


# -- values ----------------------------------------------------------------------------------------------------
def test_the_large_margin_is_what_hester_et_al_write() -> None:
    q = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.5, 2.9], [0.0, 0.0, 0.0]], requires_grad=True)
    loss = large_margin_loss(q, torch.tensor([0, 0, 2]), 0.8)
    assert loss.tolist() == pytest.approx([2.8 - 1.0, 3.7 - 3.0, 0.8])
    assert large_margin_loss(torch.tensor([[3.0, 2.0]]), torch.tensor([0]), 0.8).tolist() == [0.0]
    loss[0].backward()
    assert q.grad is not None and q.grad[0].tolist() == [-1.0, 1.0, 0.0]


def test_the_large_margin_leaves_out_what_is_forbidden_but_not_what_was_demonstrated() -> None:
    q, action = torch.tensor([[1.0, 9.0, 0.5], [1.0, 9.0, 0.5]]), torch.tensor([0, 1])
    mask = torch.tensor([[1, 0, 1], [1, 0, 1]])
    assert large_margin_loss(q, action, 0.8, mask).tolist() == pytest.approx([1.3 - 1.0, 0.0])
    free = large_margin_loss(q, action, 0.8, torch.zeros(2, 3))
    assert torch.equal(free, large_margin_loss(q, action, 0.8))


def test_a_categorical_policy_is_cloned_by_cross_entropy(demos: dict[str, str]) -> None:
    bc = term(make("ppo", DISCRETE, cloning(demos[DISCRETE], batch_size=5)))
    rows = bc.draw()
    assert rows.shape == (5,) and set(rows) == {"obs", "action"}
    logits = bc.policy.params(rows.obs)[0].detach().numpy().astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = -log_p[np.arange(5), rows.action.numpy()].mean()
    assert float(bc.loss(rows)[0].detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["sac", "td3"])
def test_bounded_policies_are_cloned_by_the_distance_of_their_mode(kind: str, demos: dict[str, str]) -> None:
    bc = term(make(kind, BOX, cloning(demos[BOX])))
    rows = bc.draw()
    mode = torch.tanh(bc.policy.params(rows.obs)[0][:, :1])
    expected = (mode - rows.action / 2.0).square().mean()  # torques lie within ±2
    assert float(bc.loss(rows)[0].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_a_gaussian_is_cloned_by_likelihood_or_by_its_mean(demos: dict[str, str]) -> None:
    agent = make("ppo", BOX, [cloning(demos[BOX]), cloning(demos[BOX], loss="mse")])
    nll, mse = term(agent), term(agent, 1)
    rows = nll.draw()
    gap = rows.action - nll.policy.params(rows.obs)[0][:, :1]  # the first log-std is 0
    expected = 0.5 * gap.square().mean() + 0.5 * math.log(2 * math.pi)
    assert float(nll.loss(rows)[0].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert float(mse.loss(rows)[0].detach()) == pytest.approx(
        float((gap / 2).square().mean().detach()), rel=1e-5
    )


def test_q_values_are_held_a_margin_apart(demos: dict[str, str]) -> None:
    agent = make("dqn", DISCRETE, [cloning(demos[DISCRETE], margin=2.0), cloning(demos[DISCRETE])])
    wide, usual = term(agent), term(agent, 1)
    rows = wide.draw()
    q = wide.policy.params(rows.obs)[0].detach()
    own, other = (q.gather(1, a[:, None])[:, 0] for a in (rows.action, 1 - rows.action))
    for bc, margin in ((wide, 2.0), (usual, 0.8)):
        expected = (other + margin - own).clamp(min=0.0).mean()
        assert float(bc.loss(rows)[0].detach()) == pytest.approx(float(expected), rel=1e-5)


def test_the_q_filter_keeps_what_the_critics_find_better(demos: dict[str, str]) -> None:
    bc = term(make("td3", BOX, cloning(demos[BOX], q_filter=True)))
    rows, model = bc.draw(), bc.learner.model
    inputs = rows.obs
    q = [model.q(inputs, row, None).amin(0) for row in (rows.action / 2, bc.dist(rows.obs).mode() / 2)]
    better = q[0] > q[1]
    loss, figures = bc.loss(rows)
    gap = (bc.dist(rows.obs).mode() / 2 - rows.action / 2).square().mean(-1)
    assert 0 < int(better.sum()) < len(better)
    assert float(loss.detach()) == pytest.approx(float((gap * better).mean().detach()), rel=1e-5)
    assert float(figures["kept"]) == pytest.approx(float(better.float().mean()))
    loss.backward()
    assert all(p.grad is None for p in model.q.parameters())


def teacher(folder: Path, kind: str, env: Any, seed: int = 5, **fields: Any) -> str:
    agent = make(kind, env, None, seed, **fields)
    with torch.no_grad():
        for parameter in agent.model.policy.parameters():
            parameter.mul_(10.0)  # a policy that knows what it wants
    return str(agent.save(folder / f"{kind}-{seed}"))


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_the_constraint_is_the_divergence_from_a_frozen_policy(direction: str, tmp_path: Path) -> None:
    to = teacher(tmp_path, "ppo", DISCRETE)
    section = {"type": "policy_constraint", "to": to, "weight": 1, "direction": direction}
    agent = make("ppo", DISCRETE, section)
    held, batch = term(agent), Batch((6,), obs=torch.randn(6, 4))
    p = torch.softmax(agent.model.policy.params(batch.obs)[0], -1).detach().double()
    q = torch.softmax(Agent.load(to).model.policy.params(batch.obs)[0], -1).detach().double()
    first, second = (p, q) if direction == "reverse" else (q, p)
    expected = (first * (first / second).log()).sum(-1)
    assert float(held.loss(batch)[0].detach()) == pytest.approx(float(expected.mean()), rel=1e-3)
    valid = torch.tensor([True] * 3 + [False] * 3)
    masked = held.loss(batch.replace(valid=valid))[0]
    assert float(masked.detach()) == pytest.approx(float(expected[:3].mean()), rel=1e-3)
    masked.backward()
    assert all(p.grad is None for p in held.reference.parameters())


def test_the_constraint_of_deterministic_policies_is_the_distance_of_actions(tmp_path: Path) -> None:
    to = teacher(tmp_path, "td3", BOX)
    agent = make("td3", BOX, {"type": "policy_constraint", "to": to, "weight": 1})
    batch = Batch((6,), obs=torch.randn(6, 3))
    modes = [a.model.policy(batch.obs)[0].mode() for a in (agent, Agent.load(to))]
    expected = ((modes[0] - modes[1]) / 2).square().mean()
    assert float(term(agent).loss(batch)[0].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_a_greedy_teacher_is_imitated_forwards(tmp_path: Path) -> None:
    to = teacher(tmp_path, "dqn", DISCRETE)
    section = {"type": "policy_constraint", "to": to, "weight": 1}
    agent = make("ppo", DISCRETE, {**section, "direction": "forward"})
    obs = torch.randn(6, 4)
    best, log_p = Agent.load(to).model.q(obs).argmax(-1), agent.model(obs).dist.log_p
    expected = -log_p.gather(-1, best[:, None]).mean().detach()
    found = term(agent).loss(Batch((6,), obs=obs))[0].detach()
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(ConfigError, match="no such divergence") as caught:
        make("ppo", DISCRETE, section)
    assert caught.value.path == "learner.regularizers.0.direction"


def test_a_policy_with_memory_is_held_near_one_without(tmp_path: Path) -> None:
    section = {"type": "policy_constraint", "to": teacher(tmp_path, "ppo", DISCRETE), "weight": 1}
    memory = {"type": "gru", "hidden_size": 8}
    agent = make("ppo", DISCRETE, section, memory=memory, sequence_length=8, batch_size=16)
    update = agent.update(0.0)
    assert float(update.metrics["regularizer/policy_constraint_loss"]) > 0.0
    obs = torch.randn(3, 2, 4)
    state = tree_map(lambda leaf: leaf.expand(3, *leaf.shape), agent.model.initial_state(2))
    first = torch.zeros(3, 2, dtype=torch.bool)
    batch = Batch((3, 2), obs=obs, state=state, is_first=first, valid=torch.ones(3, 2, dtype=torch.bool))
    own = agent.model(obs, agent.model.initial_state(2), first).dist
    expected = own.kl(Agent.load(str(section["to"])).model(obs).dist).mean()
    assert float(term(agent).loss(batch)[0].detach()) == pytest.approx(float(expected.detach()), rel=1e-4)


# -- gradients -------------------------------------------------------------------------------------------------
def first_gradients(agent: Agent) -> dict[str, torch.Tensor]:
    """Of each parameter in the first step of one update that moves it."""
    names, own = {id(p): name for name, p in agent.model.named_parameters()}, dict[str, torch.Tensor]()

    def keep(step: Any) -> None:
        places = dict(zip(step.optimizer.names, map(id, step.optimizer.parameters), strict=True))
        for name, gradient in step.gradients.items():
            if places[name] in names:
                own.setdefault(names[places[name]], gradient.clone())

    agent.learner.minimize.hook = keep
    if (precision := agent.learner.minimize.precision) is not None and precision.scale is not None:
        precision.scale.value = 256.0  # at which nothing overflows
    agent.update(0.0)
    return own


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "sam": {"optimizer": {"type": "sam", "rho": 1e-6}},
    "parts": {"optimizer": {"accumulate": 2}},
}


@pytest.mark.parametrize(
    ("kind", "way"),
    [*[(kind, "plain") for kind in LEARNERS], *[("ppo", way) for way in WAYS], ("sac", "fp16")],
)
def test_only_the_policy_is_moved_and_by_what_the_term_says(
    kind: str, way: str, demos: dict[str, str]
) -> None:
    """One step's gradient is that without the term, plus weight times the term's own."""
    env, fields = LEARNERS[kind], WAYS[way] | ({"policy_delay": 1} if kind == "td3" else {})
    without, agent, same = (
        make(kind, env, given, **fields) for given in (None, *[cloning(demos[env], 0.25)] * 2)
    )
    rows = term(same).draw()
    term(agent).draw = lambda: rows
    tensors = dict(same.model.named_parameters())
    found = torch.autograd.grad(term(same).loss(rows)[0], tuple(tensors.values()), allow_unused=True)
    extra = {name: g for name, g in zip(tensors, found, strict=True) if g is not None}
    assert extra and all(name.startswith("policy.") for name in extra)
    before, after = first_gradients(without), first_gradients(agent)
    close = {"rtol": 0.05, "atol": 5e-3} if "16" in way else {"rtol": 1e-3, "atol": 1e-5}
    for name, gradient in before.items():
        expected = gradient + 0.25 * extra[name] if name in extra else gradient
        torch.testing.assert_close(after[name], expected, **close)
    assert set(extra) <= set(before) == set(after)


def test_the_compiled_loss_takes_it(demos: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    agents = [make("ppo", DISCRETE, cloning(demos[DISCRETE]), compile=on) for on in (False, True)]
    plain, compiled = map(first_gradients, agents)
    assert plain and set(plain) == set(compiled)
    for name, gradient in plain.items():
        torch.testing.assert_close(compiled[name], gradient, rtol=1e-3, atol=1e-5)


def test_the_line_search_of_a_natural_step_sees_the_term(demos: dict[str, str]) -> None:
    """A large weight makes the natural step one of cloning: the loss it searches along falls."""
    agent = make("trpo", DISCRETE, cloning(demos[DISCRETE], 100.0, batch_size=64))
    bc = term(agent)
    rows = bc.draw()
    bc.draw = lambda: rows
    before = float(bc.loss(rows)[0].detach())
    update = agent.update(0.0)
    assert float(update.metrics["step_share"]) > 0.0
    assert float(bc.loss(rows)[0].detach()) < before


@pytest.mark.parametrize("kind", LEARNERS)
def test_weight_0_is_as_if_it_were_not_there(kind: str, demos: dict[str, str]) -> None:
    env = LEARNERS[kind]
    agents = [make(kind, env, given) for given in (None, cloning(demos[env], 0.0))]
    for agent in agents:
        for _ in range(1 if kind in ("ppo", "a2c", "trpo") else 3):  # as much as was gathered
            metrics = agent.update(0.5).metrics
    assert "regularizer/behavior_cloning_loss" not in metrics
    pairs = zip(parameters(agents[0]).values(), parameters(agents[1]).values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_weights_follow_the_run_and_terms_of_one_kind_have_names(demos: dict[str, str]) -> None:
    schedule = {"type": "linear", "start": 1.0, "end": 0.0}
    agent = make("dqn", DISCRETE, [cloning(demos[DISCRETE], schedule), cloning(demos[DISCRETE], 0.5)])
    for progress in (0.0, 0.25, 1.0):
        metrics = agent.update(progress).metrics
        assert float(metrics["regularizer/behavior_cloning_weight"]) == 1.0 - progress
        assert float(metrics["regularizer/behavior_cloning-2_weight"]) == 0.5
        assert ("regularizer/behavior_cloning_loss" in metrics) == (progress < 1.0)
        assert "regularizer/behavior_cloning-2_loss" in metrics


def test_masks_of_the_data_hold_where_it_is_cloned(tmp_path: Path) -> None:
    """Where one action is legal, there is nothing to learn."""
    path = record(MaskObsEnv(3), tmp_path / "masked.npz", lambda obs: int(obs["action_mask"].argmax()))
    for kind in ("ppo", "dqn"):
        agent = make(kind, lambda: MaskObsEnv(3), cloning(path))
        bc = term(agent)
        assert float(bc.loss(bc.draw())[0].detach()) == pytest.approx(0.0, abs=1e-6)
        assert float(agent.update(0.0).metrics["regularizer/behavior_cloning_loss"]) == pytest.approx(
            0.0, abs=1e-6
        )


# -- what cannot be had ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "env", "fields", "key", "said"),
    [
        ("ppo", BOX, {}, "data", "rows of shape"),
        ("ppo", DISCRETE, {"memory": {"type": "gru"}}, "type", "has memory"),
        ("ppo", DISCRETE, {"more": {"q_filter": True}}, "q_filter", "no critics"),
        ("ppo", DISCRETE, {"more": {"margin": 1.0}}, "margin", "no Q-values"),
        ("ppo", DISCRETE, {"more": {"loss": "mse"}}, "loss", "continuous"),
        ("dqn", DISCRETE, {"more": {"loss": "nll"}}, "loss", "large margin"),
        ("td3", BOX, {"more": {"loss": "nll"}}, "loss", "no log-probs"),
        ("bcq", BOX, {}, "type", "no step of its own"),
        ("discrete_bcq", DISCRETE, {}, "type", "greedy among"),
        ("ppo", DISCRETE, {"weight": {"type": "kl_adaptive", "start": 1.0}}, "weight", "by what is measured"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(
    kind: str, env: str, fields: dict[str, Any], key: str, said: str, demos: dict[str, str]
) -> None:
    data = demos[DISCRETE] if said == "rows of shape" else demos[env]
    section = cloning(data, fields.pop("weight", 1.0), **fields.pop("more", {}))
    with pytest.raises(ConfigError, match=said) as caught:
        make(kind, env, [section], **fields)
    assert caught.value.path == f"learner.regularizers.0.{key}"


def test_observations_of_another_environment_are_refused(demos: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lock\.npz obs: has rows of shape") as caught:
        make("ppo", DISCRETE, cloning(demos["lock"]))
    assert caught.value.path == "learner.regularizers.0.data"
    with pytest.raises(ConfigError) as caught:
        make("ppo", DISCRETE, cloning(str(tmp_path / "nothing.npz")))
    assert caught.value.path == "learner.regularizers.0.data"


@pytest.mark.parametrize(
    ("learner", "taught", "said"),
    [
        (("dqn", DISCRETE), ("ppo", DISCRETE), "learns Q-values"),
        (("ppo", DISCRETE), ("ppo", BOX), "observations of .* are"),
        (("ppo", BOX), ("sac", BOX), r"is a\s+SquashedGaussian,\s+and here it is a DiagGaussian"),
    ],
)
def test_policies_that_cannot_be_compared_are_refused(
    learner: Any, taught: Any, said: str, tmp_path: Path
) -> None:
    section = {"type": "policy_constraint", "to": teacher(tmp_path, *taught), "weight": 1}
    with pytest.raises(ConfigError, match=said) as caught:
        make(*learner, section)
    assert caught.value.path.startswith("learner.regularizers.0.")


def test_a_teacher_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        make("ppo", DISCRETE, {"type": "policy_constraint", "to": str(tmp_path / "none"), "weight": 1})
    assert caught.value.path == "learner.regularizers.0.to"


def test_an_agent_is_loaded_without_its_data_and_teacher(demos: dict[str, str], tmp_path: Path) -> None:
    agent = make("ppo", DISCRETE, cloning(demos[DISCRETE]))
    loaded = Agent.load(agent.save(tmp_path / "agent"))
    assert loaded.learner.minimize.regularizers is None
    obs = np.zeros((2, 4), np.float32)
    assert np.array_equal(loaded.act(obs), agent.act(obs))


def test_spaces_of_dicts_are_cloned(tmp_path: Path) -> None:
    class Pair(gym.Env[Any, Any]):
        observation_space = spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)})
        action_space = spaces.Dict(
            {"x": spaces.Box(-1, 1, (2,), np.float32), "y": spaces.Box(-2, 2, (1,), np.float32)}
        )

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.observation_space.seed(seed)
            self.time = 0
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            self.time += 1
            return self.observation_space.sample(), 0.0, self.time == 5, False, {}

    path = record(Pair(), tmp_path / "pair.npz")
    for kind in ("ppo", "sac", "iql"):
        bc = term(make(kind, Pair, cloning(path)))
        loss = bc.loss(bc.draw())[0]
        assert bool(loss.isfinite()) and loss.requires_grad
