"""Spellings of what belongs to learning from data: part of the table of `spellings.py`."""

from __future__ import annotations

TOP = {"data": "dataset, offline_data"}
NAMES = {
    "bc": "behavior_cloning, behaviour_cloning, behavioral_cloning, behavioural_cloning",
    "iql": "implicit_q_learning",
    "awac": "advantage_weighted_actor_critic",
    "cql": "conservative_q_learning, cql_sac",
    "discrete_cql": "cql_dqn",
    "bcq": "batch_constrained_q_learning",
    "decision_transformer": "dt",
}
LEARNER = {
    "learner.advantage_scale": "iql_beta",
    "learner.expectile": "iql_tau",
    "learner.behaviour_weight": "actor_bc_coef",
    "learner.behaviour_target_weight": "critic_bc_coef",
    "learner.target_return": "target_rtg",
    "learner.threshold": "bcq_threshold",
}
_PLAIN = (  # those that go by one name only
    "baseline, candidates, conservative, deterministic, divergence_weight, largest_weight, logit_weight, min_share, "
    "model_hidden_sizes, q_weight, reach, validation_share"
)
LEARNER["learner.regularizers"] = "regularizer, regularisers, regulariser, regularization"
LEARNER |= {f"learner.{name.strip()}": "" for name in _PLAIN.split(",")}
COMPONENT = {
    "regularizer": {
        "type": "name, class, kind, module",
        "weight": "coef, coefficient, scale",
        "data": "dataset, demonstrations, demos, offline_data",
        "batch_size": "minibatch_size",
        "to": "reference, reference_policy, teacher",
        "loss": "",
        "margin": "",
        "q_filter": "",
        "direction": "",
    }
}
REGULARIZERS = {
    "behavior_cloning": "bc, behaviour_cloning, behavioral_cloning, behavioural_cloning",
    "policy_constraint": "policy_kl, kl_penalty, kl_to_reference, kickstarting",
}
ENDINGS: dict[str, tuple[str, ...]] = {
    "regularizer": ("regularizer", "regulariser", "regularization", "loss")
}
