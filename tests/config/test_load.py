"""`load`: files, recipes, maps and overrides become one experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from uniarena.config import (
    ConfigError,
    Experiment,
    SamplingConfig,
    check_components,
    component,
    load,
    recipes,
    recipes_folder,
)
from uniarena.config.recipes import recipe_path

SAMPLES = Path(__file__).parent.parent / "samples"
BASE: dict[str, Any] = {"environment": "CartPole-v1", "learner": {"type": "ppo", "gamma": 0.9}}


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_first_sample_means_what_its_comments_say() -> None:
    exp = load(SAMPLES / "lunarlander_rnd_ppo.yaml")
    assert (exp.experiment.name, exp.experiment.project, exp.experiment.seed) == (
        "LunarLander_RND_PPO",
        "Arena_Demo",
        42,
    )
    assert (exp.environment.id, exp.environment.num_envs) == ("LunarLanderContinuous-v3", 8)
    assert [dict(wrapper) for wrapper in exp.environment.wrappers] == [
        {"type": "normalize_observation"},
        {"type": "normalize_reward"},
    ]
    assert exp.agent.policy == {"network": "mlp", "hidden_sizes": [64, 64], "activation": "tanh"}
    assert exp.agent.value == {"network": "mlp", "hidden_sizes": [64, 64]}
    assert exp.agent.intrinsic == (
        {"type": "rnd", "feature_dim": 128, "learning_rate": 1e-4, "reward_scale": 0.01},
    )
    assert exp.learner == {
        "type": "ppo", "learning_rate": 3e-4, "clip_range": 0.2, "n_steps": 2048, "batch_size": 64,
        "n_epochs": 10, "gamma": 0.99, "gae_lambda": 0.95, "ent_coef": 0.01, "vf_coef": 0.5,
        "max_grad_norm": 0.5,
        "optimizer": {"type": "adam"},
    }  # fmt: skip
    training = exp.training
    assert (training.total_timesteps, training.log_interval, training.save_interval) == (1_000_000, 10, 100)
    assert (training.eval_interval, training.n_eval_episodes) == (50, 10)
    assert len(exp.notices) == 1
    assert "LunarLanderContinuous-v2 is an old id" in exp.notices[0]
    assert "lunarlander_rnd_ppo.yaml:9" in exp.notices[0]


def test_the_second_sample_means_what_its_comments_say() -> None:
    exp = load(SAMPLES / "robot_distributed.yaml")
    assert (exp.environment.id, exp.environment.num_envs) == ("HalfCheetah-v5", 16)
    assert exp.learner == {
        "type": "ppo",
        "n_steps": 256,
        "train_batch_size": 8192,
        "learning_rate": 3e-4,
        "optimizer": {"type": "adamw", "weight_decay": 1e-5},
    }
    assert (exp.distributed.backend, exp.distributed.sync_period) == ("nccl", 10)
    text = "\n".join(exp.notices)
    assert "total_timesteps is not given; the default is 1,000,000" in text
    assert (
        "backend = nccl has no effect yet with one learner (where there is no GPU, gloo takes its place)"
        in text
    )
    assert "sync_period = 10 has no effect yet with one learner" in text
    assert len(exp.notices) == 3


def test_the_samples_take_overrides_in_their_own_spelling() -> None:
    exp = load(
        SAMPLES / "robot_distributed.yaml",
        [
            "training.batch_size=4096",
            "training.num_workers=4",
            "training.optimizer.lr=1e-3",
            "distributed.backend=gloo",
        ],
    )
    assert exp.learner["train_batch_size"] == 4096
    assert exp.environment.num_envs == 4
    assert exp.learner["learning_rate"] == 1e-3
    assert exp.distributed.backend == "gloo"
    exp = load(
        SAMPLES / "lunarlander_rnd_ppo.yaml", ["learner.optimizer.lr=1e-3", "agent.intrinsic.weight=0.5"]
    )
    assert exp.learner["learning_rate"] == 1e-3
    assert exp.agent.intrinsic[0]["reward_scale"] == 0.5


@pytest.mark.parametrize("name", sorted(recipes()))
def test_every_recipe_loads_without_a_notice(name: str) -> None:
    assert load(name).notices == ()


def test_components_of_the_samples_and_their_keys_exist() -> None:
    for sample in sorted(SAMPLES.glob("*.yaml")):
        check_components(load(sample))


def test_components_with_wrong_keys_are_all_named_with_their_lines(tmp_path: Path) -> None:
    text = "environment:\n  id: CartPole-v1\n  wrappers:\n    - type: clip_reward\n      lowest: 1\n"
    text += "learner:\n  type: ppo\n  clip_rnage: 0.1\n  n_epochs: 2.5\n"
    with pytest.raises(ConfigError) as caught:
        check_components(load(write(tmp_path, text)))
    answer = str(caught.value)
    assert "run.yaml:8: learner.clip_rnage" in answer
    assert "write clip_range" in answer
    assert "run.yaml:9: learner.n_epochs" in answer
    assert "run.yaml:5: environment.wrappers.0.lowest" in answer


def test_component_gives_class_and_config() -> None:
    exp = load([BASE])
    learner, cfg = component("learner", exp.learner, "learner")
    assert learner.Config is type(cfg)
    assert cfg.gamma == 0.9
    found, _ = component("wrapper", "ClipReward", "environment.wrappers.0")
    assert found.__name__ == "ClipReward"
    with pytest.raises(ConfigError, match="no callback is named"):
        component("callback", {}, "callbacks.0")
    with pytest.raises(ConfigError, match="there is no module"):
        component("callback", "nowhere_at_all:X", "callbacks.0")

    class Plain:
        pass

    assert component("callback", Plain, "callbacks.0") == (Plain, None)
    with pytest.raises(ConfigError, match="takes no keys"):
        component("callback", {"type": Plain, "x": 1}, "callbacks.0")


# -- sources -------------------------------------------------------------------------------------------------
def test_json_reads_like_yaml(tmp_path: Path) -> None:
    tree = {
        "environment": {"id": "CartPole-v1", "kwargs": {"text": 'tab\t, quote ", ü 😀 /', "on": True}},
        "learner": "ppo",
    }
    path = write(tmp_path, json.dumps(tree, indent="\t"), "run.json")
    exp = load(path)
    assert exp.environment.kwargs == tree["environment"]["kwargs"]  # type: ignore[index]
    assert load(path, ["learner.lr=1e-3"]).learner["learning_rate"] == 1e-3


def test_files_merge_left_to_right_key_by_key(tmp_path: Path) -> None:
    first = write(
        tmp_path,
        "environment: {id: CartPole-v1, num_envs: 4}\nlearner: {type: ppo, lr: 1, gamma: 0.9}\n",
        "a.yaml",
    )
    second = write(tmp_path, '{"env": {"n_envs": 8}, "learner": {"learning_rate": 2}}', "b.json")
    exp = load([first, second], ["training.total_timesteps=5"])
    assert (exp.environment.id, exp.environment.num_envs) == ("CartPole-v1", 8)
    assert exp.learner == {"type": "ppo", "learning_rate": 2, "gamma": 0.9}
    assert exp.locate("learner.learning_rate").source.endswith("b.json")  # type: ignore[union-attr]
    assert exp.locate("learner.gamma").source.endswith("a.yaml")  # type: ignore[union-attr]


def test_a_later_source_may_name_another_algorithm_or_unset_a_section() -> None:
    exp = load([BASE, {"agent": {"type": "A2C"}}])
    assert exp.learner == {"type": "a2c", "gamma": 0.9}
    exp = load(
        [{**BASE, "agent": {"intrinsic": "RND", "explorer": "gaussian"}}],
        ["agent.intrinsic=null", "agent.explorer="],
    )
    assert exp.agent.intrinsic == ()
    assert exp.agent.explorer is None


def test_lists_and_schedules_are_replaced_as_a_whole() -> None:
    base = {
        **BASE,
        "callbacks": ["progress", "log"],
        "learner": {"type": "ppo", "lr": {"type": "linear", "start": 1, "end": 0}},
    }
    exp = load([base, {"callbacks": ["evaluate"]}], ["learner.lr={type: constant, start: 2}"])
    assert [section["type"] for section in exp.callbacks] == ["evaluate"]
    assert exp.learner["learning_rate"] == {"type": "constant", "start": 2}


def test_the_unit_of_an_interval_can_be_changed_later() -> None:
    exp = load(
        [{**BASE, "training": {"log_interval": 3, "save_interval": 4}}], ["training.log_every_env_steps=500"]
    )
    assert (exp.training.log_interval, exp.training.log_every_env_steps) == (None, 500)
    assert exp.training.save_interval == 4


def test_maps_from_python_may_hold_numpy_values_paths_and_classes() -> None:
    import numpy as np

    class MyEnv:
        pass

    exp = load(
        {
            "environment": {
                "id": MyEnv,
                "num_envs": np.int64(4),
                "kwargs": {"mass": np.float32(0.5), "on": np.bool_(True)},
            },
            "agent": {"type": "PPO", "policy": {"hidden_sizes": (32, 32)}, "init_from": Path("a/b")},
        }
    )
    assert exp.environment.id is MyEnv
    assert exp.environment.num_envs == 4
    assert exp.environment.kwargs == {"mass": 0.5, "on": True}
    assert all(type(value) in (float, bool) for value in exp.environment.kwargs.values())
    assert exp.agent.policy["hidden_sizes"] == [32, 32]
    assert exp.agent.init_from == "a/b"


def test_the_callers_map_is_left_alone() -> None:
    source = {"environment": {"id": "CartPole-v1"}, "agent": {"type": "PPO", "policy": {"net_arch": [1]}}}
    twin = json.loads(json.dumps(source))
    load(source, ["agent.policy.hidden_sizes.0=9"])
    assert source == twin


def test_anchors_and_merge_keys(tmp_path: Path) -> None:
    text = (
        "environment: CartPole-v1\nagent:\n  type: PPO\n  policy: &n {hidden_sizes: [8], activation: relu}\n"
    )
    text += "  value:\n    <<: *n\n    activation: tanh\n"
    exp = load(write(tmp_path, text))
    assert exp.agent.value == {"hidden_sizes": [8], "activation": "tanh"}
    assert exp.agent.policy == {"hidden_sizes": [8], "activation": "relu"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4), ("1E5", 1e5), ("1.", 1.0), (".5", 0.5), ("-1_000", -1000), ("010", 10),
        ("0x1F", 31), ("0o17", 15), (".inf", float("inf")), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"),
        ("yes", True), ("off", False), ("~", None),
        ("'3e-4'", "3e-4"), ("e5", "e5"), ("1.2.3", "1.2.3"), ("12e", "12e"), ("null", None), ("", None),
    ],
)  # fmt: skip
def test_scalars(text: str, value: Any) -> None:
    found = load([BASE], [f"environment.kwargs.x={text}"]).environment.kwargs["x"]
    assert (found, type(found)) == (value, type(value))


# -- overrides -----------------------------------------------------------------------------------------------
def test_overrides_reach_entries_of_lists() -> None:
    base = {
        **BASE,
        "callbacks": [{"type": "evaluate", "a": 1}, "log"],
        "agent": {"policy": {"hidden_sizes": [64, 64]}},
    }
    exp = load([base], ["callbacks.0.a=2", "callbacks.1={type: progress}", "agent.policy.net_arch.1=32"])
    assert [dict(section) for section in exp.callbacks] == [
        {"type": "evaluate", "a": 2},
        {"type": "progress"},
    ]
    assert exp.agent.policy["hidden_sizes"] == [64, 32]


def test_overrides_take_yaml_values_and_aliases() -> None:
    exp = load(
        [BASE],
        [
            "env.wrapper=[FrameStack, {ClipReward: {low: -2}}]",
            "agent.policy={net_arch: [8], activation_fn: nn.ReLU}",
            "--learner.lr=lin_1e-3",
        ],
    )
    assert [dict(section) for section in exp.environment.wrappers] == [
        {"type": "frame_stack"},
        {"low": -2, "type": "clip_reward"},
    ]
    assert exp.agent.policy == {"hidden_sizes": [8], "activation": "relu"}
    assert exp.learner["learning_rate"] == {"type": "linear", "start": 1e-3, "end": 0.0}


def test_the_last_override_wins() -> None:
    assert load([BASE], ["learner.gamma=0.5", "learner.discount=0.6"]).learner["gamma"] == 0.6


@pytest.mark.parametrize(
    ("override", "message", "hint"),
    [
        ("learner.gamma", "expected key.path=value, got 'learner.gamma'", "write learner.gamma=…"),
        ("learner.gamma 0.5", "expected key.path=value", "write learner.gamma=0.5"),
        ("other.yaml", "expected key.path=value", "files and recipes come before overrides"),
        ("+learner.x=3", "as in Hydra", "write learner.x=3"),
        ("~learner.x", "as in Hydra", "write learner.x=null"),
        ("a..b=3", "'a..b' is not a key path", "learner.gamma=0.98"),
        ("0.x=3", "'0.x' is not a key path", "learner.gamma=0.98"),
        ("learner.gamma=[1", "not YAML", "quote the value"),
        (
            "callbacks.0.x=3",
            "expected a list whose entries have numbers; it is not there",
            "give the whole list",
        ),
        ("learner.gamma.0=3", "expected a list whose entries have numbers; it is 0.9", "give the whole list"),
        ("learnr.gamma=1", "unknown section 'learnr'", "write learner"),
        ("environment.num_env=x", "expected a whole number, got 'x'", ""),
    ],
)
def test_bad_overrides(override: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load([BASE], [override])
    assert message in str(caught.value)
    assert hint in caught.value.hint
    assert "command line" in str(caught.value)
    assert override[:10] in str(caught.value)


def test_an_index_beyond_the_list_is_an_error() -> None:
    with pytest.raises(ConfigError, match="there are 1 entries, counted from 0"):
        load([{**BASE, "callbacks": ["log"]}], ["callbacks.1.x=3"])


# -- finding files -------------------------------------------------------------------------------------------
def test_recipes_have_names_and_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = recipes_folder()
    assert folder is not None
    monkeypatch.chdir(tmp_path)
    for name in ("ppo/cartpole", "ppo/cartpole.yaml", "recipes/ppo/cartpole.yaml", "PPO/CartPole"):
        assert load(name).environment.id == "CartPole-v1"
    assert recipe_path("ppo/nothing") is None
    assert all(path.is_file() for path in recipes().values())


def test_a_file_of_the_users_comes_before_a_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ppo").mkdir()
    write(tmp_path / "ppo", "environment: Acrobot-v1\nagent: PPO\n", "cartpole.yaml")
    monkeypatch.chdir(tmp_path)
    assert load("ppo/cartpole.yaml").environment.id == "Acrobot-v1"
    assert load("ppo/cartpole").environment.id == "CartPole-v1"


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        ("runn.yaml", "there is no file or recipe 'runn.yaml'", "did you mean run.yaml?"),
        ("run.yml", "there is no file or recipe 'run.yml'", "did you mean run.yaml?"),
        ("ppo/cartpol", "there is no file or recipe 'ppo/cartpol'", "did you mean ppo/cartpole?"),
        ("Pendulum", "there is no file or recipe", "ppo/pendulum"),
        ("zzzzzz", "there is no file or recipe", "write a file's path, or one of the recipes: "),
        ("notes.txt", "notes.txt is not a config: expected .yaml, .yml or .json", ""),
        ("folder", "folder is a folder", "name the file in it"),
        ("old-run", "old-run is a folder", "uniarena resume old-run"),
        ("latin.yaml", "latin.yaml is not UTF-8", "save it as UTF-8"),
    ],
)
def test_missing_and_odd_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, message: str, hint: str
) -> None:
    write(tmp_path, "environment: CartPole-v1\nagent: PPO\n")
    write(tmp_path, "hello", "notes.txt")
    (tmp_path / "latin.yaml").write_bytes(b"experiment: {name: caf\xe9}")
    (tmp_path / "folder").mkdir()
    (tmp_path / "old-run").mkdir()
    write(tmp_path / "old-run", "environment: CartPole-v1", "config.yaml")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load(source)
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_no_source_and_odd_sources() -> None:
    with pytest.raises(ConfigError, match="no config given"):
        load([])
    with pytest.raises(ConfigError, match="expected a file, a recipe or a map; got int"):
        load([3])  # type: ignore[list-item]
    loop: dict[str, Any] = {}
    loop["environment"] = loop
    with pytest.raises(ConfigError, match="contains itself"):
        load(loop)


# -- places --------------------------------------------------------------------------------------------------
def test_places_survive_until_assembly(tmp_path: Path) -> None:
    exp: Experiment = load(
        write(tmp_path, "environment: CartPole-v1\nlearner:\n  type: ppo\n\n  lr: 1\nagent:\n  policy: {}\n")
    )
    assert str(exp.locate("learner.learning_rate")).endswith("run.yaml:5")
    assert str(exp.locate("learner.gamma")).endswith("run.yaml:2")
    assert str(exp.locate("agent.policy.hidden_sizes")).endswith("run.yaml:7")
    assert exp.locate("training.device") is None
    with pytest.raises(ConfigError) as caught, exp.locating():
        raise ConfigError("too large", path="learner.learning_rate")
    assert str(caught.value.location).endswith("run.yaml:5")


def test_sampling_may_be_a_word_and_a_lag_belongs_to_one_kind() -> None:
    base = {"environment": "CartPole-v1", "learner": "ppo"}
    assert load(base).sampling == SamplingConfig(type="local", lag=1, timeout_s=600.0)
    for given in ("pipelined", {"type": "pipelined"}, {"mode": "pipelined"}):
        assert load({**base, "sampling": given}).sampling.type == "pipelined"
    assert load({**base, "sampler": "pipelined"}, ["sampling.lag=free"]).sampling.lag == "free"
    assert load([base], ["sampling.type=pipelined", "sampling.lag=1"]).sampling.lag == 1
    with pytest.raises(ConfigError, match="never behind"):
        load({**base, "sampling": {"lag": "free"}})
    with pytest.raises(ConfigError, match="lag"):
        load({**base, "sampling": {"type": "pipelined", "lag": 2}})
