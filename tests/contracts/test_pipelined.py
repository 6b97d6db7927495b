"""A chunk in flight: what is collected, with which parameters, and what a checkpoint holds meanwhile."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.contracts.doors import Cue
from tests.fakes.envs import (
    CounterEnv,
    CounterVectorEnv,
    GrowingCorridor,
    MaskInfoEnv,
    NestedObsEnv,
    TensorCounter,
)
from tests.resume.runs import differ
from uniarena.agent import Agent
from uniarena.batch import Batch, Rollout, tree_map, tree_paths
from uniarena.config import ConfigError, SamplingConfig
from uniarena.envs import Env, WorkersConfig, make_env
from uniarena.sampling import Ahead, LocalSampler, PipelinedSampler
from uniarena.sampling.producer import OwnStreams
from uniarena.seeding import seed_globals
from uniarena.trainer import Trainer

PIPELINED = SamplingConfig(type="pipelined")
TWO = SamplingConfig(type="pipelined", producers=2)
each_number = pytest.mark.parametrize("cfg", [PIPELINED, TWO], ids=["one", "two"])
PPO = {"type": "ppo", "n_steps": 16, "n_epochs": 2, "batch_size": 32}
CHUNK = 4 * 16
FRAMES = ["frame_stack", "normalize_observation"]
LSTM = {"memory": {"type": "lstm", "hidden_size": 8}}


def counters(*lengths: int) -> list[Callable[[], CounterEnv]]:
    return [lambda n=n: CounterEnv(n, metrics=True) for n in lengths]


FORMS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "serial": (counters(1, 2, 3, 5), {}, {}),
    "sync": (counters(1, 2, 3, 5), {"vectorization": "sync"}, {}),
    "workers": (counters(1, 2, 3, 5), {"vectorization": WorkersConfig(processes=2)}, {}),
    "next step": (lambda num_envs: CounterVectorEnv(num_envs, (1, 2, 3, 5), "NextStep"), {"num_envs": 4}, {}),
    "tensor": (lambda num_envs: TensorCounter(num_envs, (1, 2, 3, 5), final="dense"), {"num_envs": 4}, {}),
    "no finals": (lambda num_envs: TensorCounter(num_envs, (1, 2, 3, 5)), {"num_envs": 4}, {}),
    "masks": (MaskInfoEnv, {"num_envs": 2, "kwargs": {"length": [4, 7]}}, {}),
    "trees": (NestedObsEnv, {"num_envs": 2}, {}),
    "memory": (Cue, {"num_envs": 3}, {"parts": LSTM}),
    "frames": ("CartPole-v1", {"num_envs": 2, "wrappers": FRAMES}, {}),
    "box": ("Pendulum-v1", {"num_envs": 2}, {"policy": {"gsde": True}}),
}


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """What is put there is closed."""
    found: list[Any] = []
    yield found
    for each in found:
        each.close()


def made(form: str) -> tuple[Env, Agent]:
    seed_globals(0)
    spec, options, parts = FORMS[form]
    env = make_env(spec, **{"num_envs": len(spec) if isinstance(spec, list) else 1, **options})
    return env, Agent.assemble(env, PPO, seed=3, **parts)


def leaves(rollout: Rollout) -> dict[str, torch.Tensor]:
    parts = {name: getattr(rollout, name) for name in ("rows", "start", "last", "ended", "lost")}
    return {
        path: leaf
        for part, batch in parts.items()
        if batch is not None
        for name, tree in batch.fields.items()
        if name != "policy_version"
        for path, leaf in tree_paths(tree, f"{part}.{name}")
    }


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(
        np.array_equal(a.numpy(), other[path].numpy(), equal_nan=a.is_floating_point())
        for path, a in one.items()
    )


@pytest.mark.filterwarnings("ignore::uniarena.envs.UniArenaNotice")
@pytest.mark.parametrize("form", FORMS)
def test_with_one_actor_it_collects_what_the_local_sampler_collects(form: str, opened: list[Any]) -> None:
    """Boundaries come a chunk later: the chunk that begins is the one that they end."""
    env, agent = made(form)
    local = LocalSampler(env, agent.streams, agent.learner.records)
    opened.append(local)
    local.publish(agent.actor, 0)
    steps = 7 * local.columns
    expected = [leaves(local.collect(steps, boundary=k == 2).clone()) for k in range(5)]
    env, agent = made(form)
    sampler = PipelinedSampler(env, agent.streams, agent.learner.records)
    opened.append(sampler)
    sampler.publish(agent.actor, 0)
    assert sampler.columns == local.columns
    for k in range(5):
        rollout = sampler.collect(steps, boundary=k == 1, ahead=Ahead(steps, 1000))
        assert rollout.rows.policy_version.shape == rollout.rows.shape
        assert same(leaves(rollout), expected[k]), k
        agent.explorer.set_clock((k + 1) * steps, 0.0)


def part_of(rollout: Rollout, part: int, columns: int) -> Rollout:
    """The columns of one producer, as it gathered them."""
    own = slice(part * columns, (part + 1) * columns)

    def events(batch: Any) -> Any:
        inside = None if batch is None else (batch.b >= own.start) & (batch.b < own.stop)
        if inside is None or not inside.any():
            return None
        return batch[inside].replace(b=batch.b[inside] - own.start)

    rows = Batch(
        (rollout.T, columns), {n: tree_map(lambda x: x[:, own], t) for n, t in rollout.rows.fields.items()}
    )
    return Rollout(
        rows, rollout.start[own], rollout.last[own], events(rollout.ended), lost=events(rollout.lost)
    )


SPREAD = ("serial", "next step", "tensor", "trees", "memory", "frames", "box")


@pytest.mark.filterwarnings("ignore::uniarena.envs.UniArenaNotice")
@pytest.mark.parametrize("form", SPREAD)
def test_two_producers_gather_what_each_would_by_itself(form: str, opened: list[Any]) -> None:
    """Side by side: the first as if it were the only one, the second with streams of its own."""
    spec, options, parts = FORMS[form]
    options = {**options, "num_envs": 2} if form == "memory" else options
    env = make_env(spec, **{"num_envs": len(spec) if isinstance(spec, list) else 1, **options})
    columns, expected = env.num_envs // 2, []
    for part in range(2):
        agent = Agent.assemble(env, PPO, seed=3, **parts)
        local = LocalSampler(
            env.factory(columns, first=part * columns), OwnStreams(3, part), agent.learner.records
        )
        opened.append(local)
        local.publish(agent.actor, 0)
        expected.append([leaves(local.collect(7 * columns, boundary=k == 2).clone()) for k in range(5)])
    agent = Agent.assemble(env, PPO, seed=3, **parts)
    sampler = PipelinedSampler(env, agent.streams, agent.learner.records, cfg=TWO)
    opened.append(sampler)
    sampler.publish(agent.actor, 0)
    steps = 7 * 2 * columns
    for k in range(5):
        rollout = sampler.collect(steps, boundary=k == 1, ahead=Ahead(steps, 1000))
        assert rollout.rows.policy_version.shape == rollout.rows.shape == (7, 2 * columns)
        for part in range(2):
            found = leaves(part_of(rollout, part, columns))
            assert same({n: x for n, x in found.items() if n in expected[part][k]}, expected[part][k]), (
                k,
                part,
            )
        if rollout.ended is not None:
            assert (rollout.ended.t.diff() >= 0).all()
        agent.explorer.set_clock((k + 1) * steps, 0.0)
    if form == "box":  # whose first state is drawn
        assert not torch.equal(*rollout.rows.reward.split(columns, 1))


def trainer_of(
    cfg: SamplingConfig = PIPELINED, *callbacks: Any, spec: Any = "CartPole-v1", **options: Any
) -> Trainer:
    seed_globals(7)
    env = make_env(spec, 4, wrappers=options.pop("wrappers", ["normalize_observation", "normalize_reward"]))
    rnd = {"intrinsic": {"type": "rnd", "hidden_sizes": [8], "feature_dim": 4}}
    learner = {**PPO, **options}
    agent = Agent.assemble(env, learner, policy={"hidden_sizes": [8]}, parts=rnd, seed=7)
    return Trainer(agent, env, callbacks=callbacks, sampling=cfg)


class Watch:
    """Keeps the actor after each update, and the chunks."""

    def __init__(self) -> None:
        self.actors: list[Any] = []
        self.chunks: list[Rollout] = []

    def on_training_start(self, trainer: Trainer, event: Any) -> None:
        self.actors.append(copy.deepcopy(trainer.agent.actor))

    def on_batch_collected(self, trainer: Trainer, event: Any) -> None:
        self.chunks.append(event.rollout.clone())

    def on_iteration_end(self, trainer: Trainer, event: Any) -> None:
        self.actors.append(copy.deepcopy(trainer.agent.actor))


@each_number
def test_each_chunk_is_collected_with_what_was_published_an_update_before(
    cfg: SamplingConfig, opened: list[Any]
) -> None:
    """Parameters and statistics of observations: the log-probs are those of that actor, bit for bit (of one producer:
    more rows at a time are multiplied in another order).
    """
    watch = Watch()
    trainer = trainer_of(cfg, watch)
    opened.append(trainer)
    trainer.fit(5 * CHUNK)
    assert trainer.counters.env_steps == 5 * CHUNK and trainer.counters.updates == 5
    for k, chunk in enumerate(watch.chunks):
        version = max(0, k - 1)
        assert (chunk.rows.policy_version == version).all()
        found = watch.actors[version].log_prob(chunk.rows)
        assert torch.equal(found, chunk.rows.log_prob) or (
            cfg is TWO and torch.allclose(found, chunk.rows.log_prob, rtol=1e-5)
        )
        if k > 1:
            assert not torch.equal(watch.actors[k].log_prob(chunk.rows), chunk.rows.log_prob)


class Stop:
    """Waits for the chunk in flight at odd moments, so that who is quicker changes."""

    def on_batch_collected(self, trainer: Trainer, event: Any) -> None:
        if trainer.counters.iterations % 2:
            assert trainer.sampler.native_state


@each_number
def test_a_run_repeats_whoever_is_quicker(cfg: SamplingConfig, opened: list[Any]) -> None:
    states = []
    for callbacks in ((), (Stop(),)):
        trainer = trainer_of(cfg, *callbacks)
        opened.append(trainer)
        trainer.fit(4 * CHUNK + 10)
        states.append({**trainer.state_dict(), "trainer": trainer.state_dict()["trainer"]["counters"]})
    assert states[0]["trainer"]["env_steps"] == 4 * CHUNK + 12  # whole vector steps
    assert [*differ(states[0], states[1], "state")] == []


@each_number
@pytest.mark.parametrize("at", [1, 3])
def test_resumed_with_a_chunk_in_flight_it_ends_bit_for_bit_as_uninterrupted(
    at: int, cfg: SamplingConfig, opened: list[Any]
) -> None:
    class Save:
        state: Any = None

        def on_iteration_end(self, trainer: Trainer, event: Any) -> None:
            if trainer.counters.iterations == at:
                self.state = copy.deepcopy(trainer.state_dict())

    save = Save()
    whole = trainer_of(cfg, save)
    opened.append(whole)
    whole.fit(6 * CHUNK)
    assert len(save.state["sampler"]["chunks"]) == 1
    torch.manual_seed(0)
    resumed = trainer_of(cfg, Save())
    opened.append(resumed)
    resumed.load_state_dict(save.state)
    resumed.fit(6 * CHUNK)
    assert [*differ(whole.state_dict(), resumed.state_dict(), "state")] == []


def test_nothing_is_collected_beyond_the_end_and_a_longer_run_goes_on(opened: list[Any]) -> None:
    trainer = trainer_of()
    opened.append(trainer)
    trainer.fit(2 * CHUNK)
    state = trainer.sampler.state_dict()
    assert state["chunks"] == [] and state["env_steps"] == 2 * CHUNK
    trainer.fit(3 * CHUNK + 20)
    assert trainer.counters.env_steps == 3 * CHUNK + 20 and trainer.sampler.state_dict()["chunks"] == []


def test_the_state_of_another_number_of_producers_is_refused(opened: list[Any]) -> None:
    one, two = trainer_of(), trainer_of(TWO)
    opened.extend((one, two))
    with pytest.raises(ValueError, match=r"of 1 producer, and here are 2: set sampling\.producers to 1"):
        two.sampler.load_state_dict(one.sampler.state_dict())
    with pytest.raises(ValueError, match=r"of 2 producers, and here are 1"):
        one.sampler.load_state_dict(two.sampler.state_dict())


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_several_producers_reach_the_end_whatever_rows_are_not_valid(mode: str, opened: list[Any]) -> None:
    """Chunks under way are taken for valid, and what is missing then comes with a further one."""
    ends = []
    for _ in range(2):
        seed_globals(7)
        vector = lambda num_envs: CounterVectorEnv(num_envs, (2, 3), mode)  # noqa: E731
        env = make_env(vector, 2)
        trainer = Trainer(Agent.assemble(env, {**PPO, "n_steps": 4}, seed=1), env, sampling=TWO)
        opened.append(trainer)
        trainer.fit(50)
        assert 50 <= trainer.counters.env_steps <= 51 and trainer.sampler.state_dict()["chunks"] == []
        trainer.fit(60)
        assert trainer.counters.env_steps >= 60
        ends.append(trainer.state_dict()["agent"])
    assert [*differ(ends[0], ends[1], "state")] == []


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_only_valid_rows_count_towards_the_end(mode: str, opened: list[Any]) -> None:
    """Under next-step autoreset a chunk has fewer steps than rows, which is known when it is there."""
    counted = []
    for cfg in (SamplingConfig(), PIPELINED):
        vector = lambda num_envs: CounterVectorEnv(num_envs, (2, 3), mode)  # noqa: E731
        env = make_env(vector, 2)
        trainer = Trainer(Agent.assemble(env, {**PPO, "n_steps": 4}), env, sampling=cfg)
        opened.append(trainer)
        trainer.fit(50)
        counted.append((trainer.counters.env_steps, trainer.counters.steps))
    assert counted[0] == counted[1]


class Counted(CounterEnv):
    """Counts the steps that were taken in this process."""

    steps = 0

    def step(self, action: int) -> Any:
        Counted.steps += 1
        return super().step(action)


def test_the_trainers_process_steps_no_environment(opened: list[Any]) -> None:
    Counted.steps = 0
    trainer = trainer_of(spec=Counted)
    opened.append(trainer)
    trainer.fit(2 * CHUNK)
    assert trainer.counters.env_steps == 2 * CHUNK and Counted.steps == 0


@each_number
def test_an_attribute_is_set_before_the_next_chunk_that_begins(
    cfg: SamplingConfig, opened: list[Any]
) -> None:
    levels = []

    class Harder:
        def on_batch_collected(self, trainer: Trainer, event: Any) -> None:
            levels.append(event.rollout.rows.info["metrics/level"].unique().tolist())
            trainer.sampler.set_attr("difficulty", 5)

    class Telling(GrowingCorridor):
        def step(self, action: int) -> Any:
            *rest, info = super().step(action)
            return *rest, {**info, "metrics": {"level": self.difficulty}}

        def set_level(self, level: int) -> None:
            raise ValueError(f"there is no level {level}")

    trainer = trainer_of(cfg, Harder(), spec=Telling)
    opened.append(trainer)
    with pytest.raises(ValueError, match="there is no level 9"):  # which harms nothing
        trainer.sampler.set_attr("level", 9)
    trainer.sampler.set_attr("difficulty", 2)
    trainer.fit(5 * CHUNK)
    assert levels == [[2.0], [2.0], [5.0], [5.0], [5.0]]


@pytest.mark.parametrize("producers", [1, 2])
def test_free_running_takes_the_newest_parameters_there_are(producers: int, opened: list[Any]) -> None:
    """Each producer by itself."""
    watch = Watch()
    trainer = trainer_of(SamplingConfig(type="pipelined", lag="free", producers=producers), watch)
    opened.append(trainer)
    trainer.fit(8 * CHUNK)
    assert trainer.counters.env_steps == 8 * CHUNK
    for k, chunk in enumerate(watch.chunks):
        for part in range(producers):
            rows = part_of(chunk, part, 4 // producers).rows
            (version,) = set(rows.policy_version.flatten().tolist())
            assert k - 3 <= version <= k
            assert torch.allclose(watch.actors[version].log_prob(rows), rows.log_prob, rtol=1e-5)


class Locked(torch.nn.Module):
    """Holds what no other process can be given."""

    def __init__(self, obs_dim: int, act_dim: int) -> None:
        super().__init__()
        self.layer, self.lock = torch.nn.Linear(obs_dim, act_dim), threading.Lock()

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layer(obs)


def test_a_policy_that_cannot_be_sent_is_refused(opened: list[Any]) -> None:
    env = make_env("CartPole-v1", 2)
    agent = Agent.assemble(env, PPO, policy={"network": f"{__name__}:Locked"}, value={"network": "mlp"})
    sampler = PipelinedSampler(env, agent.streams)
    opened.append(sampler)
    with pytest.raises(ConfigError, match="the policy cannot be sent to a producer process"):
        sampler.publish(agent.actor, 0)


class Swapping(torch.nn.Module):
    """Puts another tensor in the place of a buffer in every pass with gradients."""

    def __init__(self, obs_dim: int, act_dim: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(obs_dim, act_dim)
        self.register_buffer("shift", torch.zeros(act_dim))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.shift = self.shift + torch.arange(len(self.shift)) * 0.1
        return self.layer(obs) + self.shift


def test_buffers_that_are_exchanged_reach_the_producer(opened: list[Any]) -> None:
    env, watch = make_env("CartPole-v1", 2), Watch()
    agent = Agent.assemble(env, PPO, policy={"network": f"{__name__}:Swapping"}, value={"network": "mlp"})
    trainer = Trainer(agent, env, callbacks=[watch], sampling=PIPELINED)
    opened.append(trainer)
    trainer.fit(4 * 32)
    for k, chunk in enumerate(watch.chunks):
        assert torch.equal(watch.actors[max(0, k - 1)].log_prob(chunk.rows), chunk.rows.log_prob)


@pytest.mark.parametrize(
    ("spec", "learner", "words"),
    [
        (lambda: make_env(CounterEnv(3)), {}, "given as an object"),
        (lambda: make_env("CartPole-v1"), {"ratio": "atom"}, "compares with the policy before the update"),
    ],
)
def test_what_cannot_be_pipelined_is_refused(
    spec: Callable[[], Env], learner: dict[str, Any], words: str, opened: list[Any]
) -> None:
    env = spec()
    opened.append(env)
    with pytest.raises(ConfigError, match=words):
        Trainer(Agent.assemble(env, {**PPO, **learner}), env, sampling=PIPELINED)


def test_environments_that_cannot_be_spread_evenly_are_refused(opened: list[Any]) -> None:
    env = make_env("CartPole-v1", 6)
    opened.append(env)
    cfg = SamplingConfig(type="pipelined", producers=4)
    with pytest.raises(
        ConfigError, match=r"6 environments .* over 4 producers; those that fit are 1, 2, 3, 6"
    ):
        Trainer(Agent.assemble(env, PPO), env, sampling=cfg)


def test_one_process_has_no_producers() -> None:
    with pytest.raises(ConfigError, match="2 producer processes, but `local` steps the environments"):
        SamplingConfig(producers=2)
