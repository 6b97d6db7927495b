"""Spellings that users know from elsewhere; afterwards only canonical names exist."""

from __future__ import annotations

from typing import Any

import pytest

from uniarena.config import ConfigError, canonical_name, load
from uniarena.config.aliases import COMPONENT_KEYS, KEYS, NAMES, NETWORK_KEYS
from uniarena.config.section import find


def loaded(tree: dict[str, Any]) -> Any:
    return load([{"environment": {"id": "CartPole-v1"}, "learner": {"type": "ppo"}}, tree])


@pytest.mark.parametrize(
    ("kind", "spelling", "name"),
    [
        ("learner", "PPO", "ppo"), ("learner", "PPO_Agent", "ppo"), ("learner", "PPOAgent", "ppo"),
        ("learner", "ActorCritic", "a2c"), ("learner", "A2C", "a2c"),
        ("network", "MlpPolicy", "mlp"), ("network", "MlpValue", "mlp"), ("network", "MLP", "mlp"),
        ("network", "CnnPolicy", "nature_cnn"), ("network", "NatureCNN", "nature_cnn"),
        ("network", "ImpalaCNN", "impala_cnn"),
        ("explorer", "GaussianExplorer", "sample"), ("explorer", "SampleExplorer", "sample"),
        ("buffer", "OnPolicyBuffer", "rollout"), ("buffer", "RolloutBuffer", "rollout"),
        ("buffer", "ReplayBuffer", "replay"),
        ("bonus", "RND", "rnd"), ("bonus", "RNDModule", "rnd"),
        ("memory", "LSTM", "lstm"), ("memory", "GRUCell", "gru"),
        ("optimizer", "Adam", "adam"), ("optimizer", "AdamW", "adamw"), ("optimizer", "RMSprop", "rmsprop"),
        ("optimizer", "torch.optim:Adagrad", "torch.optim:Adagrad"),
        ("schedule", "LinearSchedule", "linear"), ("schedule", "cosine_annealing", "cosine"),
        ("wrapper", "NormalizeObservation", "normalize_observation"),
        ("wrapper", "NormalizeReward", "normalize_reward"),
        ("wrapper", "FrameStack", "frame_stack"), ("wrapper", "FrameStackObservation", "frame_stack"),
        ("wrapper", "frame-stack", "frame_stack"), ("wrapper", "TimeLimit", "time_limit"),
        ("wrapper", "RecordVideo", "record_video"),
        ("wrapper", "StickyAction", "sticky_actions"), ("wrapper", "ClipRewardEnv", "clip_reward"),
        ("callback", "EvalCallback", "evaluate"), ("callback", "CheckpointCallback", "checkpoint"),
        ("callback", "EarlyStopping", "early_stop"), ("logger", "TensorBoard", "tensorboard"),
        ("learner", "nonsense", "nonsense"),
    ],
)  # fmt: skip
def test_names(kind: str, spelling: str, name: str) -> None:
    assert canonical_name(kind, spelling) == name


@pytest.mark.parametrize(
    ("tree", "path", "value"),
    [
        ({"agent": {"memory": "LSTM"}}, "agent.memory.type", "lstm"),
        ({"agent": {"recurrent": {"cell": "GRU"}}}, "agent.memory.type", "gru"),
        ({"agent": {"memory": {"type": "lstm", "lstm_hidden_size": 9}}}, "agent.memory.hidden_size", 9),
        ({"env_id": "Acrobot-v1"}, "environment.id", "Acrobot-v1"),
        ({"env": "Acrobot-v1"}, "environment.id", "Acrobot-v1"),
        ({"environment": {"env_id": "Acrobot-v1"}}, "environment.id", "Acrobot-v1"),
        ({"environment": {"n_envs": 3}}, "environment.num_envs", 3),
        ({"environment": {"wrapper": "FrameStack"}}, "environment.wrappers", [{"type": "frame_stack"}]),
        (
            {"environment": {"wrappers": {"type": "FrameStack", "num_stack": 2}}},
            "environment.wrappers.0.n_frames", 2,
        ),
        ({"environment": {"wrappers": ["VecNormalize"]}}, "environment.wrappers.1.type", "normalize_reward"),
        (
            {"environment": {"wrappers": ["Monitor", "ClipAction"]}},
            "environment.wrappers", [{"type": "clip_action"}],
        ),
        ({"environment": {"vec_env_cls": "SubprocVecEnv"}}, "environment.vectorization", "async"),
        ({"environment": {"vectorization": "SYNC"}}, "environment.vectorization", "sync"),
        ({"environment": {"action_mask": None}}, "environment.action_mask", "none"),
        ({"seed": 3}, "experiment.seed", 3),
        ({"experiment": "trial"}, "experiment.name", "trial"),
        ({"experiment": {"exp_name": "x"}}, "experiment.name", "x"),
        ({"experiment": {"logger": "tb"}}, "experiment.loggers", [{"type": "tensorboard"}]),
        ({"timesteps": 3}, "training.total_timesteps", 3),
        ({"training": {"total_steps": 3}}, "training.total_timesteps", 3),
        ({"training": {"max_steps": 3}}, "training.total_timesteps", 3),
        ({"training": {"seed": 3}}, "experiment.seed", 3),
        ({"training": {"device": "GPU:1"}}, "training.device", "cuda:1"),
        ({"training": {"max_wall_time": "1h30m"}}, "training.max_wall_time", 5400.0),
        ({"training": {"max_wall_time": "01:00:01"}}, "training.max_wall_time", 3601.0),
        ({"training": {"max_wall_time": "90"}}, "training.max_wall_time", 90.0),
        ({"training": {"lr": 1.0}}, "learner.learning_rate", 1.0),
        ({"training": {"gamma": 0.5}}, "learner.gamma", 0.5),
        ({"training": {"callbacks": ["EvalCallback"]}}, "callbacks", [{"type": "evaluate"}]),
        ({"training": {"train_batch_size": 9}}, "learner.train_batch_size", 9),
        ({"agent": {"gamma": 0.5}}, "learner.gamma", 0.5),
        ({"agent": {"learner": {"lr": 0.5}}}, "learner.learning_rate", 0.5),
        ({"agent": {"optimizer": "SGD"}}, "learner.optimizer.type", "sgd"),
        ({"algo": {"lr": 0.5}}, "learner.learning_rate", 0.5),
        ({"agent": {"explorer": "GaussianExplorer"}}, "agent.explorer", {"type": "sample"}),
        ({"agent": {"buffer": {"class": "OnPolicyBuffer"}}}, "agent.buffer", {"type": "rollout"}),
        (
            {"agent": {"curiosity": {"method": "RND", "lr": 1}}},
            "agent.intrinsic", {"type": "rnd", "learning_rate": 1},
        ),
        ({"agent": {"intrinsic": ["RND"]}}, "agent.intrinsic", [{"type": "rnd"}]),
        ({"policy": "MlpPolicy"}, "agent.policy", {"network": "mlp"}),
        (
            {"agent": {"actor": {"net_arch": [4], "activation_fn": "nn.LeakyReLU"}}},
            "agent.policy.activation", "leaky_relu",
        ),
        (
            {"agent": {"policy": {"use_sde": True, "dist": "Normal"}}},
            "agent.policy", {"gsde": True, "distribution": "gaussian"},
        ),
        ({"learner": {"clip_grad_norm": 1}}, "learner.max_grad_norm", 1),
        ({"learner": {"clip_coef": 1}}, "learner.clip_range", 1),
        ({"learner": {"clip_range_vf": 1}}, "learner.value_clip", 1),
        ({"learner": {"update_epochs": 1}}, "learner.n_epochs", 1),
        ({"learner": {"num_steps": 1}}, "learner.n_steps", 1),
        ({"learner": {"GAE-Lambda": 1}}, "learner.gae_lambda", 1),
        ({"learner": {"lambda_": 1}}, "learner.gae_lambda", 1),
        ({"learner": {"entropy_coeff": 1}}, "learner.ent_coef", 1),
        ({"learner": {"vf_loss_coeff": 1}}, "learner.vf_coef", 1),
        ({"learner": {"sgd_minibatch_size": 1}}, "learner.batch_size", 1),
        ({"learner": {"norm_adv": True}}, "learner.normalize_advantage", True),
        ({"learner": {"learningRate": 1}}, "learner.learning_rate", 1),
        (
            {"learner": {"lr": {"name": "Linear", "initial": 1, "final": 0}}},
            "learner.learning_rate", {"type": "linear", "start": 1, "end": 0},
        ),
        (
            {"learner": {"optimizer": {"name": "Adam", "epsilon": 1e-5}}},
            "learner.optimizer", {"type": "adam", "eps": 1e-5},
        ),
        ({"learner": {"optimizer": {"learning_rate": 1}}}, "learner.learning_rate", 1),
        ({"learner": {"optimizer": {"epsilon": 1}}}, "learner.optimizer", {"eps": 1}),
        ({"callbacks": "EvalCallback"}, "callbacks", [{"type": "evaluate"}]),
        ({"callbacks": [{"EvalCallback": {"n": 3}}]}, "callbacks", [{"n": 3, "type": "evaluate"}]),
        ({"distributed": "NCCL"}, "distributed.backend", "NCCL"),
        ({"distributed": {"world_size": 1}}, "distributed.num_learners", 1),
    ],
)  # fmt: skip
def test_spellings(tree: dict[str, Any], path: str, value: Any) -> None:
    assert find(loaded(tree).source, path)[0] == value


def test_one_alias_per_table_leads_to_a_canonical_key() -> None:
    for table in (*KEYS.values(), *COMPONENT_KEYS.values(), NETWORK_KEYS, *NAMES.values()):
        assert all(word and target and word == word.strip() for word, target in table.items())


@pytest.mark.parametrize(
    ("tree", "one", "other"),
    [
        ({"learner": {"lr": 1, "learning_rate": 1}}, "learner.lr", "learner.learning_rate"),
        (
            {"learner": {"learning_rate": 1, "optimizer": {"lr": 1}}},
            "learner.learning_rate", "learner.optimizer.lr",
        ),
        ({"learner": {"lr": 1}, "training": {"optimizer": {"lr": 1}}}, "learner.lr", "training.optimizer.lr"),
        (
            {"training": {"num_workers": 1}, "environment": {"num_envs": 2}},
            "training.num_workers", "environment.num_envs",
        ),
        ({"seed": 1, "experiment": {"seed": 1}}, "seed", "experiment.seed"),
        (
            {"environment": {"wrapper": "ClipReward", "wrappers": []}},
            "environment.wrapper", "environment.wrappers",
        ),
        (
            {"distributed": {"backend": "gloo"}, "training": {"distributed": {"backend": "gloo"}}},
            "distributed.backend", "training.distributed.backend",
        ),
        (
            {"agent": {"policy": {"net_arch": [1], "hidden_sizes": [1]}}},
            "agent.policy.net_arch", "agent.policy.hidden_sizes",
        ),
        (
            {"agent": {"intrinsic": {"type": "rnd", "lr": 1, "learning_rate": 2}}},
            "agent.intrinsic.lr", "agent.intrinsic.learning_rate",
        ),
    ],
)  # fmt: skip
def test_one_key_under_two_spellings_is_a_conflict_that_names_both(
    tree: dict[str, Any], one: str, other: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tree)
    message = caught.value.faults[0].message
    assert "given twice" in message
    assert f"as {one}" in message
    assert f"as {other}" in message


def test_sections_that_complete_each_other_are_no_conflict() -> None:
    exp = loaded({"distributed": {"sync_period": 2}, "training": {"distributed": {"backend": "gloo"}}})
    assert (exp.distributed.backend, exp.distributed.sync_period) == ("gloo", 2)


def test_agent_type_alone_implies_the_learner_and_agreement_is_fine() -> None:
    tree = {"environment": "CartPole-v1", "agent": {"type": "PPO_Agent"}}
    assert load(tree).learner == {"type": "ppo"}
    assert load({**tree, "learner": {"type": "PPO"}}).learner == {"type": "ppo"}
    with pytest.raises(ConfigError, match=r"learner\.type says a2c, but agent\.type says ppo") as caught:
        load({**tree, "learner": {"type": "ActorCritic"}})
    assert caught.value.hint == "keep one of them: either implies the other"


def test_a_users_own_classes_keep_their_keys() -> None:
    exp = load(
        {
            "environment": {
                "id": "CartPole-v1",
                "wrappers": [{"type": "mine:Stack", "k": 3, "num_stack": 2}],
            },
            "agent": {
                "type": "mine:Learner",
                "policy": {"class": "mine:Net", "layers": 3, "N": 2, "lr": 1},
                "explorer": {"type": "mine:Explorer", "name": "x"},
            },
            "learner": {"lr": 1, "epochs": 2, "num_minibatches": 4, "optimizer": {"lr": 3}},
        }
    )
    assert exp.learner == {
        "type": "mine:Learner",
        "lr": 1,
        "epochs": 2,
        "num_minibatches": 4,
        "optimizer": {"lr": 3},
    }
    assert exp.agent.policy == {"network": "mine:Net", "layers": 3, "N": 2, "lr": 1}
    assert exp.agent.explorer == {"type": "mine:Explorer", "name": "x"}
    assert exp.environment.wrappers == ({"type": "mine:Stack", "k": 3, "num_stack": 2},)
    again = load([exp.source], ["learner.lr=5", "agent.policy.layers=4"])
    assert again.learner["lr"] == 5
    assert again.agent.policy["layers"] == 4


def test_classes_given_from_python_name_components() -> None:
    class Net:
        pass

    class Bonus:
        pass

    exp = load(
        {
            "environment": "CartPole-v1",
            "agent": {"type": "ppo", "policy": Net, "intrinsic": Bonus},
            "callbacks": [Bonus],
        }
    )
    assert exp.agent.policy == {"network": Net}
    assert exp.agent.intrinsic == ({"type": Bonus},)
    assert exp.callbacks == ({"type": Bonus},)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("LunarLanderContinuous-v2", "LunarLanderContinuous-v3", "details"),
        ("LunarLander-v2", "LunarLander-v3", "details"),
        ("CartPole-v0", "CartPole-v1", "500 steps instead of 200"), ("Pendulum-v0", "Pendulum-v1", "old id"),
        ("BipedalWalker-v2", "BipedalWalker-v3", "details"), ("HalfCheetah-v2", "HalfCheetah-v5", "details"),
        ("Walker2d-v4", "Walker2d-v5", "details"), ("Taxi-v3", "Taxi-v4", "details"),
        ("CliffWalking-v0", "CliffWalking-v1", "details"),
    ],
)  # fmt: skip
def test_old_environment_ids_become_todays_with_a_notice(old: str, new: str, said: str) -> None:
    exp = load({"environment": old, "agent": "PPO", "timesteps": 1})
    assert exp.environment.id == new
    assert len(exp.notices) == 1
    assert old in exp.notices[0] and new in exp.notices[0] and said in exp.notices[0]


@pytest.mark.parametrize(
    "current",
    [
        "CartPole-v1",
        "LunarLander-v3",
        "HalfCheetah-v5",
        "MountainCar-v0",
        "Hopper-v6",
        "phys2d/CartPole-v0",
        "my:Env-v0",
        "ALE/Pong-v5",
    ],
)
def test_other_ids_stay(current: str) -> None:
    exp = load({"environment": current, "agent": "PPO", "timesteps": 1})
    assert (exp.environment.id, exp.notices) == (current, ())


def test_ids_of_envpool_are_its_own() -> None:
    exp = load(
        {"environment": {"id": "HalfCheetah-v4", "vectorization": "envpool"}, "agent": "PPO", "timesteps": 1}
    )
    assert exp.environment.id == "HalfCheetah-v4"


def test_every_old_id_leads_to_one_that_gymnasium_has() -> None:
    import gymnasium

    from uniarena.config.environments import _CURRENT

    for name, (version, _) in _CURRENT.items():
        assert f"{name}-v{version}" in gymnasium.registry
