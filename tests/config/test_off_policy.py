"""Off-policy names of other libraries; keys with two meanings; what stays behind when the algorithm is exchanged."""

from __future__ import annotations

from typing import Any

import pytest

from uniarena import registry
from uniarena.config import ConfigError, canonical_name, load, parse
from uniarena.config.aliases import LEARNER_KEYS
from uniarena.config.assembly import check_components
from uniarena.config.fields import field_types
from uniarena.config.section import find

BASE: dict[str, Any] = {"environment": {"id": "CartPole-v1"}}


def loaded(learner: dict[str, Any], agent: dict[str, Any] | None = None, kind: str = "dqn") -> Any:
    return load({**BASE, "learner": {"type": kind, **learner}, **({"agent": agent} if agent else {})})


def refused(learner: dict[str, Any], agent: dict[str, Any] | None = None, kind: str = "dqn") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_components(loaded(learner, agent, kind))
    assert len(str(caught.value).splitlines()) <= 40
    return caught.value


@pytest.mark.parametrize(
    ("kind", "learner", "path", "value"),
    [
        ("dqn", {"buffer_size": 9}, "agent.buffer.capacity", 9),
        ("dqn", {"replay_size": 9}, "agent.buffer.capacity", 9),
        ("dqn", {"start_steps": 9}, "learner.learning_starts", 9),
        ("sac", {"utd_ratio": 2}, "learner.updates_per_env_step", 2),
        ("sac", {"soft_target_tau": 0.1}, "learner.tau", 0.1),
        ("dqn", {"target_network_frequency": 9}, "learner.target_update_env_steps", 9),
        ("dqn", {"estimation_step": 3}, "learner.n_step", 3),
        ("td3", {"policy_frequency": 2}, "learner.policy_delay", 2),
        ("td3", {"target_policy_noise": 0.3}, "learner.target_noise", 0.3),
        ("td3", {"noise_clip": 0.3}, "learner.target_noise_clip", 0.3),
        ("td3", {"exploration_noise": 0.3}, "agent.explorer.sigma", 0.3),
        ("sac", {"ent_coef": 0.2}, "learner.alpha", 0.2),
        ("tqc", {"ent_coef": "auto"}, "learner.alpha", "auto"),
        ("sac", {"ent_coef": "auto_0.1"}, "learner.alpha_init", "0.1"),
        ("ppo", {"ent_coef": 0.2}, "learner.ent_coef", 0.2),
        ("tqc", {"top_quantiles_to_drop_per_net": 3}, "learner.drop_quantiles", 3),
        ("dqn", {"exploration_fraction": 0.3}, "agent.explorer.epsilon.fraction", 0.3),
        ("dqn", {"exploration_final_eps": 0.1}, "agent.explorer.epsilon.end", 0.1),
        ("rainbow", {"prioritized_replay_alpha": 0.3}, "agent.buffer.alpha", 0.3),
        ("sac", {"goal_selection_strategy": "final"}, "agent.buffer.her.strategy", "final"),
    ],
)
def test_names_of_other_libraries(kind: str, learner: dict[str, Any], path: str, value: Any) -> None:
    exp = loaded(learner, kind=kind)
    assert find(exp.source, path)[0] == value
    check_components(exp)


def test_an_automatic_temperature_with_its_first_value() -> None:
    assert loaded({"ent_coef": "auto_0.1"}, kind="sac").learner == {
        "type": "sac",
        "alpha": "auto",
        "alpha_init": "0.1",
    }


def test_the_learners_keys_join_the_sections_they_belong_to() -> None:
    agent = {"buffer": {"type": "PrioritizedReplayBuffer"}, "explorer": {"epsilon": {"start_e": 0.5}}}
    exp = loaded({"buffer_size": 9, "end_e": 0.2}, agent)
    assert exp.agent.buffer == {"type": "prioritized", "capacity": 9}
    assert exp.agent.explorer == {"epsilon": {"start": 0.5, "end": 0.2}}
    again = load([exp.source], ["training.buffer_size=7"])
    assert again.agent.buffer["capacity"] == 7


@pytest.mark.parametrize(
    ("learner", "agent", "one", "other"),
    [
        ({"buffer_size": 9}, {"buffer": {"capacity": 9}}, "agent.buffer", "learner.buffer_size"),
        ({"end_e": 0.1}, {"explorer": {"epsilon": 0.1}}, "agent.explorer", "learner.end_e"),
        ({"start_e": 1.0, "eps_start": 1.0}, None, "learner.start_e", "learner.eps_start"),
    ],
)
def test_two_spellings_conflict(
    learner: dict[str, Any], agent: dict[str, Any] | None, one: str, other: str
) -> None:
    message = refused(learner, agent).faults[0].message
    assert "given twice" in message
    assert one in message
    assert other in message


@pytest.mark.parametrize(
    ("kind", "learner", "problem", "fix"),
    [
        ("sac", {"polyak": 0.995}, "share that stays", "tau: 0.005"),
        ("sac", {"polyak": 0.005}, "share that stays", "tau: 0.005"),
        ("dqn", {"target_update_interval": 500}, "env steps in DQN", "target_update_env_steps: 500"),
        ("dqn", {"train_freq": 8}, "by env steps", "updates_per_env_step: 0.125"),
        ("sac", {"gradient_steps": -1}, "for every env step", "updates_per_env_step: 1"),
        ("sac", {"critic_lr": 1e-3}, "learning_rate is the critics'", "policy_learning_rate"),
        ("sac", {"autotune": True}, "temperature", "alpha: auto"),
        ("sac", {"autotune": False}, "temperature", "alpha: 0.2"),
        ("sac", {"policy_frequency": 2}, "that many policy updates", "leave it out"),
        ("tqc", {"top_quantiles_to_drop": 4}, "sum over all critics", "drop_quantiles"),
        ("rainbow", {"prioritized_replay_beta0": 0.4}, "start of a rise", "agent.buffer.beta"),
        ("sac", {"n_sampled_goal": 4}, "share of transitions", "her: {ratio: 0.8}"),
        ("td3", {"action_noise": "OrnsteinUhlenbeckActionNoise"}, "explorer's", "ornstein_uhlenbeck"),
        ("td3", {"twin_q": True}, "counted", "n_critics: 2"),
        ("dqn", {"handle_timeout_termination": False}, "told from failures", "leave it out"),
    ],
)
def test_keys_with_two_meanings_are_answered(
    kind: str, learner: dict[str, Any], problem: str, fix: str
) -> None:
    error = refused(learner, kind=kind)
    assert len(error.faults) == 1
    assert problem in error.faults[0].message
    assert fix in error.hint


def test_what_is_always_so_needs_no_key() -> None:
    exp = loaded({"optimize_memory_usage": True, "handle_timeout_termination": True})
    assert exp.learner == {"type": "dqn"}


@pytest.mark.parametrize(
    ("agent", "fix"),
    [
        ({"buffer": "HerReplayBuffer"}, "type: replay, her: {}"),
        ({"buffer": {"her": {"replay_k": 4}}}, "ratio: 0.8"),
        ({"explorer": "Gaussian"}, "gaussian_noise"),
    ],
)
def test_parts_with_two_meanings_are_answered(agent: dict[str, Any], fix: str) -> None:
    assert fix in refused({}, agent, kind="td3").hint


@pytest.mark.parametrize(
    ("kind", "spelling", "name"),
    [
        ("learner", "SAC", "sac"),
        ("learner", "QRDQN", "qr_dqn"),
        ("learner", "SoftActorCritic", "sac"),
        ("learner", "RainbowDQN", "rainbow"),
        ("buffer", "PrioritizedReplayBuffer", "prioritized"),
        ("buffer", "DictReplayBuffer", "replay"),
        ("explorer", "NormalActionNoise", "gaussian_noise"),
        ("explorer", "OrnsteinUhlenbeckActionNoise", "ornstein_uhlenbeck"),
    ],
)
def test_classes_of_other_libraries(kind: str, spelling: str, name: str) -> None:
    assert canonical_name(kind, spelling) == name


def test_double_dqn_is_an_option() -> None:
    error = refused({}, kind="DoubleDQN")
    assert error.hint == "write type: dqn, double: true"


def test_hindsight_is_switched_by_a_word_too() -> None:
    assert loaded({}, {"buffer": {"type": "replay", "her": True}}).agent.buffer["her"] == {}
    assert loaded({}, {"buffer": {"type": "replay", "her": False}}).agent.buffer["her"] is None


# -- another algorithm for the same recipe -----------------------------------------------------------------------
def test_another_family_is_answered_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check_components(load("ppo/cartpole", ["learner.type=dqn"]))
    error = caught.value
    assert len(error.faults) == 1
    assert (
        "dqn has no n_steps, n_epochs, gae_lambda, normalize_return, clip_range (lines "
        in error.faults[0].message
    )
    assert "is n_step" in error.faults[0].message
    assert "write n_step" not in error.hint
    fixes = [word for word in error.hint.split() if word.startswith("learner.")]
    exp = load("ppo/cartpole", ["learner.type=dqn", *fixes])
    check_components(exp)
    assert (
        parse(registry.lookup("learner", "dqn").Config, exp.learner.without("type"), "learner").gamma == 0.98
    )


def test_back_to_rollouts_is_answered_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check_components(load("sac/pendulum", ["learner.type=ppo"]))
    said = {fault.path: fault for fault in caught.value.faults}
    assert set(said) == {"agent.buffer", "learner.learning_starts"}
    assert "agent.buffer=null" in said["agent.buffer"].hint


def test_other_faults_are_told_with_what_is_left_over() -> None:
    error = refused({"gae_lambda": 0.9, "gamma": 2.0, "batch_sise": 3})
    assert {fault.path for fault in error.faults} == {
        "learner.gae_lambda",
        "learner.gamma",
        "learner.batch_sise",
    }


def test_null_takes_away_only_what_other_learners_have() -> None:
    assert {fault.path for fault in refused({"n_stepps": None}).faults} == {"learner.n_stepps"}
    check_components(loaded({"n_epochs": None, "max_grad_norm": None}))


def test_every_setting_of_every_learner_is_known_to_the_table() -> None:
    for name in registry.BUILT_IN["learner"]:
        missing = set(field_types(registry.lookup("learner", name).Config)) - set(LEARNER_KEYS)
        assert not missing, name


# -- misspelt sections -------------------------------------------------------------------------------------------
def test_faults_below_misspelt_sections_are_told_in_the_same_round() -> None:
    with pytest.raises(ConfigError) as caught:
        load(
            {
                "environmnt": {"id": "CartPole-v1"},
                "lerner": {"type": "dqn", "gama": 0.9},
                "trainig": {"total_timesteps": "many"},
            }
        )
    assert {fault.path for fault in caught.value.faults} == {
        "environmnt",
        "lerner",
        "trainig",
        "learner.gama",
        "training.total_timesteps",
    }
    with pytest.raises(ConfigError) as caught:
        load({**BASE, "learner": "ppo", "agent": {"polcy": {"hidden_sises": [3]}, "bufer": {"typ": 3}}})
    assert {"agent.polcy", "agent.bufer"} <= {fault.path for fault in caught.value.faults}


def test_a_misspelt_section_beside_the_right_one_is_no_second_one() -> None:
    with pytest.raises(ConfigError) as caught:
        load({**BASE, "learner": {"type": "ppo"}, "lerner": {"gamma": 0.5}})
    assert [fault.path for fault in caught.value.faults] == ["lerner"]
