"""Spellings of settings of learners from data: part of the table of `spellings.py`."""

from __future__ import annotations

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
LEARNER |= {f"learner.{name.strip()}": "" for name in _PLAIN.split(",")}
