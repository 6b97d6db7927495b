"""Every kind of bad config gets one screen that names the place and the likely fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from uniarena.config import ConfigError, load

START = "environment: CartPole-v1\nagent: PPO\n"


def answer(folder: Path, text: str, name: str = "run.yaml") -> ConfigError:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(path)
    lines = str(caught.value).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 110 + len(str(folder))
    return caught.value


CASES = [
    # unknown keys
    ("trainig: {}", 3, "trainig", "unknown section 'trainig'", "write training"),
    ("training: {total_timestep: 3}", 3, "training.total_timestep", "unknown key", "write total_timesteps"),
    (
        "learning_rate: 3",
        3,
        "learning_rate",
        "unknown section",
        "this belongs elsewhere: learner.learning_rate",
    ),
    ("hidden_sizes: [3]", 3, "hidden_sizes", "unknown", "this belongs elsewhere: agent.policy.hidden_sizes"),
    (
        "training:\n  gae: 1\n  wrappers: []",
        5,
        "training.wrappers",
        "unknown",
        "elsewhere: environment.wrappers",
    ),
    ("training: {qwertyuiop: 3}", 3, "training.qwertyuiop", "unknown key", "remove it"),
    ("7: 3", 3, "7", "a key must be text, got 7", "quote the key"),
    # wrong types
    ("training:\n  total_timesteps: many", 4, "training.total_timesteps", "a whole number, got 'many'", ""),
    ("training: {log_interval: true}", 3, "training.log_interval", "got true", ""),
    ("training: {eval_interval: 2.5}", 3, "training.eval_interval", "got 2.5", "write 2"),
    ("training: {save_interval: 0}", 3, "training.save_interval", "(at least 1) or null, got 0", ""),
    ("training: {threads: none}", 3, "training.threads", "a whole number (at least 1 and at most 1024)", ""),
    ("training: {device: gpuu}", 3, "training.device", "cuda:N, mps or xpu, got 'gpuu'", "leave it out"),
    ("training: {max_wall_time: soon}", 3, "training.max_wall_time", "expected a duration", "1h30m"),
    ("experiment: {name: 2024}", 3, "experiment.name", "expected text or null, got 2024", "quote it: '2024'"),
    ("experiment: {seed: -1}", 3, "experiment.seed", "at least 0", ""),
    ("experiment: {tags: fast}", 3, "experiment.tags", "expected a list", "write [fast]"),
    ("distributed: {backend: mpi}", 3, "distributed.backend", "one of 'auto', 'gloo', 'nccl', got 'mpi'", ""),
    # lists and maps in each other's place
    ("training:\n- log_interval: 3", 3, "training", "expected a map of keys", "remove the dashes"),
    ("learner: [ppo]", 3, "learner", "expected a map of keys, got ['ppo']", "write learner: ppo"),
    (
        "callbacks: {every: 3}",
        3,
        "callbacks.0",
        "a map with a type; got a map with the keys every",
        "add type",
    ),
    ("callbacks: 3", 3, "callbacks", "expected a list of names or maps, got 3", ""),
    ("callbacks: [3]", 3, "callbacks.0", "expected a map of keys, got 3", ""),
    (
        "training: 5",
        3,
        "training",
        "expected a map of keys, got 5",
        "write `training:` and the keys below it",
    ),
    # names
    (
        "callbacks: [EvalCallbak]",
        3,
        "callbacks.0.type",
        "there is no callback 'EvalCallbak'",
        "write evaluate",
    ),
    ("callbacks:\n- log\n- {type: ''}", 5, "callbacks.1.type", "there is no callback ''", ""),
    ("callbacks: [a.b.C]", 3, "callbacks.0.type", "there is no callback", "an import path has a colon"),
    ("callbacks: [{type: 3}]", 3, "callbacks.0.type", "expected the name of a callback, got 3", ""),
    (
        "agent: {intrinsic: {lr: 1}}",
        3,
        "agent.intrinsic.type",
        "no bonus is named",
        "add type: one of count, icm",
    ),
    ("learner: {optimizer: Adan}", 3, "learner.optimizer.type", "there is no optimizer 'Adan'", "write adam"),
    # impossible combinations
    (
        "learner: {type: a2c}",
        3,
        "learner.type",
        "learner.type says a2c, but agent",
        "either implies the other",
    ),
    (
        "learner: {lr: 1, optimizer: {lr: 1}}",
        3,
        "learner.learning_rate",
        "given twice",
        "keep one of the two",
    ),
    (
        "training: {log_interval: 1, log_every_env_steps: 2}",
        3,
        "training.log_every_env_steps",
        "twice",
        "keep one",
    ),
    (
        "training: {batch_size: 64}",
        3,
        "training.batch_size",
        "could be the minibatch",
        "write learner.batch_size",
    ),
    # keys with two meanings
    (
        "training: {eval_freq: 3}",
        3,
        "training.eval_freq",
        "is not a key here",
        "eval_every_env_steps (env steps)",
    ),
    ("training: {epochs: 3}", 3, "training.epochs", "passes over a batch or turns of the loop", "n_epochs"),
    (
        "training: {num_minibatches: 3}",
        3,
        "training.num_minibatches",
        "given by its size",
        "learner.batch_size",
    ),
    ("learner: {anneal_lr: true}", 3, "learner.anneal_lr", "a schedule stands", "{type: linear, start: 3e-4"),
    ("learner: {clip_vloss: true}", 3, "learner.clip_vloss", "given by its range", "learner.value_clip: 0.2"),
    # memory and buffer
    ("agent: {memory: {capacity: 9}}", 3, "agent.memory.capacity", "is about replay", "under agent.buffer"),
    ("agent: {memory: ReplayBuffer}", 3, "agent.memory.type", "is about replay", "under agent.buffer"),
    ("agent: {buffer: {type: gru}}", 3, "agent.buffer.type", "attention memory", "under agent.memory"),
    ("agent: {buffer: {window: 4}}", 3, "agent.buffer.window", "attention memory", "under agent.memory"),
    # later versions
    ("agent: {memory: {type: lstn}}", 3, "agent.memory.type", "there is no memory", "write lstm"),
    ("agent: {buffer: episodic}", 3, "agent.buffer.type", "there is no buffer 'episodic'; known: ", ""),
    (
        "agent: {policy: MlpLstmPolicy}",
        3,
        "agent.policy.network",
        "is not a network of its own here",
        "write agent.memory: lstm",
    ),
    ("curriculum: {start: 0}", 3, "curriculum", "it is a callback", "type: curriculum"),
    ("agent: {intrinsic: {module: NGU}}", 3, "agent.intrinsic.module", "comes with a later version", ""),
    ("agent: {world_model: {a: 1}}", 3, "agent.world_model", "come with a later version", "leave it out"),
    ("learner: {type: IPPO}", 3, "learner.type", "IPPO comes with a later version; this one has a2c, ", ""),
    (
        "stages: [pretrain]",
        3,
        "stages.0",
        "expected a map with a name and sections, got 'pretrain'",
        "write {name: …}",
    ),
    (
        "stages: {warm: {learner: {}}, hot: {}}",
        3,
        "stages",
        "expected a list of stages, got a map with the keys hot, warm",
        "stages: [{name: warm, …}, {name: hot, …}]",
    ),
    (
        "wandb: {project: x}",
        3,
        "wandb",
        "Weights & Biases logging comes with a later version",
        "leave it out",
    ),
    (
        "experiment: {track: true}",
        3,
        "experiment.track",
        "Weights & Biases logging comes with",
        "leave it out",
    ),
    (
        "experiment: {loggers: [mlflow]}",
        3,
        "experiment.loggers.0.type",
        "mlflow comes with a later",
        "leave it",
    ),
    ("callbacks: [wandb]", 3, "callbacks.0.type", "wandb comes with a later version", "leave it out"),
    ("hydra: {run: x}", 3, "hydra", "running under Hydra comes with a later version", "leave it out"),
    ("defaults: [a]", 3, "defaults", "Hydra's config composition comes with a later version", "leave it out"),
    (
        "learner: {gamma: '${gamma}'}",
        3,
        "learner.gamma",
        "interpolation as in Hydra",
        "write the value itself",
    ),
    (
        "callbacks: [{_target_: a.B}]",
        3,
        "callbacks.0._target_",
        "as in Hydra",
        "write type: package.module:Name",
    ),
    (
        "distributed: {num_learners: 4}",
        3,
        "distributed.num_learners",
        "come with a later version",
        "leave it out",
    ),
    (
        "distributed: {compression: topk}",
        3,
        "distributed.compression",
        "with a later version",
        "leave it out",
    ),
]


@pytest.mark.parametrize(
    ("text", "line", "path", "message", "hint"), CASES, ids=[case[0][:40] for case in CASES]
)
def test_answers(tmp_path: Path, text: str, line: int, path: str, message: str, hint: str) -> None:
    start = "environment: CartPole-v1\n" + ("learner: PPO\n" if text.startswith("agent") else "agent: PPO\n")
    if text.startswith("learner: {type: IPPO"):
        start = "environment: CartPole-v1\ntraining: {}\n"
    error = answer(tmp_path, start + text)
    assert len(error.faults) == 1
    assert str(error.location).endswith(f"run.yaml:{line}")
    assert error.path == path
    assert message in error.faults[0].message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("agent: PPO", "no environment is named", "add `environment: {id: CartPole-v1}`"),
        ("environment: {num_envs: 3}\nagent: PPO", "no environment is named", "add `environment:"),
        ("environment: CartPole-v1", "no algorithm is named", "add `learner: {type: ppo}`"),
        ("environment: {id: 3}\nagent: PPO", "expected an environment's id, got 3", "CartPole-v1"),
        (
            "environment: {id: CartPole-v1, gravity: 3}\nagent: PPO",
            "unknown key 'gravity'",
            "environment.kwargs",
        ),
        (
            "environment: {id: x, vectorization: asink}\nagent: PPO",
            "one of 'auto', 'serial'",
            "did you mean async?",
        ),
        (
            "environment: {id: x, workers: {processes: 2}}\nagent: PPO",
            "vectorization is auto",
            "add `vectorization: async`",
        ),
        (
            "environment: {id: x, vectorization: async, workers: {on_fault: retry}}\nagent: PPO",
            "'stop', 'restart'",
            "did you mean restart?",
        ),
        (
            "environment: {id: x, wrappers: [Foo]}\nagent: PPO",
            "there is no wrapper 'Foo'",
            "import path of your own",
        ),
        ("environment: {id: x, wrappers: [AtariPreprocessing]}\nagent: PPO", "bundles", "preprocess_image"),
        ("environment: {id: x, frame_stack: 4}\nagent: PPO", "frame stacking is a wrapper", "n_frames: 4"),
        ("environment: {id: x, normalize: true}\nagent: PPO", "normalisation is a wrapper", "wrappers: ["),
        (
            "environment: pistonball_v6\nagent: PPO",
            "several agents; multi-agent training comes with a later",
            "one agent",
        ),
        (
            "environment: pettingzoo/chess\nagent: PPO",
            "multi-agent training comes with a later version",
            "one agent",
        ),
        (
            "environment: mpe2/simple_spread_v3\nagent: PPO",
            "multi-agent training comes with a later version",
            "one",
        ),
        ("environment: x\nagent: PPPO", "there is no learner 'PPPO'; known: a2c, ", "write ppo"),
        (
            "environment: x\nagent: my.module.Agent",
            "there is no learner",
            "has a colon before the name: my.module:Agent",
        ),
    ],
)
def test_answers_about_environment_and_algorithm(tmp_path: Path, text: str, message: str, hint: str) -> None:
    error = answer(tmp_path, text)
    assert len(error.faults) == 1
    assert message in error.faults[0].message
    assert hint in error.hint
    assert "run.yaml:" in str(error)


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("environment: {id: x\nagent: PPO\n", 2, "not YAML", "brackets, quotes and indentation"),
        ("environment: x\nagent: PPO\n\ttraining: {}\n", 3, "not YAML", "indent with spaces"),
        ("environment: x\nagent: a: b\n", 2, "not YAML", "needs quotes"),
        ("environment: x\nagent: *net\n", 2, "not YAML", "define it first: &name"),
        ("environment: x\n---\nagent: PPO\n", 2, "not YAML", "remove the line ---"),
        (
            "environment: x\nagent: PPO\nenvironment: y\n",
            3,
            "the key 'environment' stands here twice",
            "remove one",
        ),
        ("environment: &e [*e]\n", 1, "an anchor repeats without end", "remove the alias"),
        (
            "environment: !!python/object/apply:os.system [ls]\n",
            1,
            "!!python/object/apply:os.system is not",
            "tag",
        ),
        ("environment: !mine x\n", 1, "the tag !mine is not plain data", "remove the tag"),
        ("environment: !!int x\n", 1, "'x' does not read as a number", ""),
        ("environment: {<<: 3}\n", 1, "<<: takes a map", ""),
        ("? [a]\n: 3\n", 1, "a key must be text, got a map or a list", "needs quotes"),
        ("- a\n", 1, "expected a map of sections, got a list", "begin with `environment:`"),
        ("42", 1, "expected a map of sections, got a single value", "begin with `environment:`"),
        ("", 0, "empty; expected a map of sections", "begin with `environment: {id"),
        ("[" * 5000, 1, "not YAML: exceeded maximum nesting depth", ""),
    ],
)
def test_broken_text(tmp_path: Path, text: str, line: int, message: str, hint: str) -> None:
    error = answer(tmp_path, text)
    assert message in error.faults[0].message
    assert hint in error.hint
    assert error.location is not None
    assert error.location.line == line


def test_broken_json(tmp_path: Path) -> None:
    error = answer(tmp_path, '{"environment": "x",\n "agent": "PPO",}', "run.json")
    assert "not JSON" in str(error)
    assert error.location is not None
    assert error.location.line == 2
    error = answer(tmp_path, '{"environment": "x", "environment": "y"}', "run.json")
    assert "stands here twice" in str(error)


def test_anchors_cannot_multiply_without_bounds(tmp_path: Path) -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    assert "repeats without end" in str(answer(tmp_path, text))


def test_all_faults_are_reported_together_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = START + "training:\n  total_timesteps: many\n  n_eval_episodes: 0\nexperiment:\n  seed: 1.5\n"
    error = answer(tmp_path, text)
    assert [fault.location.line for fault in error.faults if fault.location] == [4, 5, 7]
    assert str(error).startswith("3 things are wrong in this config:\n")


@pytest.mark.parametrize(
    "empty", ["agent: {memory: }", "agent: {memory: {}}", "stages: []", "wandb: false", "agent:"]
)
def test_what_is_planned_may_stand_there_empty(tmp_path: Path, empty: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"environment: CartPole-v1\nlearner: ppo\n{empty}\n", encoding="utf-8")
    assert load(path).learner == {"type": "ppo"}


@pytest.mark.parametrize(
    "tree",
    [
        {"agent": {"policy": 3}},
        {"agent": {"policy": {"network": 3}}},
        {"agent": {"intrinsic": 3}},
        {"agent": {"explorer": ["a", "b"]}},
        {"learner": {"optimizer": ["adam", "sgd"]}},
        {"learner": {"optimizer": {"type": None}}},
        {"environment": {"id": "x", "kwargs": [1]}},
        {"environment": {"id": "x", "wrappers": [None]}},
        {"environment": {"id": "x", "wrappers": [[]]}},
        {"environment": {"id": ["x"]}},
        {"experiment": {"loggers": [1.5]}},
        {"callbacks": {"type": {"a": 1}}},
        {"distributed": [1]},
        {"learner": {3: 4}},
        {"agent": {"policy": {3: 4}, "buffer": {3: 4}}},
    ],
)
def test_nothing_odd_ends_in_a_traceback(tree: dict[str, Any]) -> None:
    try:
        load([{"environment": "CartPole-v1", "learner": {"type": "ppo"}}, tree])
    except ConfigError as error:
        assert error.faults[0].message
