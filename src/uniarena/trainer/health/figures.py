"""Names of the figures that watch over a run, what they mean, and how they are grouped for the eye."""

from __future__ import annotations

FIGURES: dict[str, str] = {
    "health/value_mean": "what the critic predicts of the newest rows, on average (Q of what was done off-policy)",
    "health/return_realised": "the discounted return that followed on these rows, as the learner is paid",
    "health/value_bias": "by how much predictions are too large: value_mean − return_realised",
    "health/td_error_median": "median of the one-step errors of these predictions",
    "health/td_error_p95": "95th percentile of the same",
    "health/data_q": "Q of what the data did, on average over places spread over it; from data only, as the next five",
    "health/data_q_policy": "Q of what the policy would do in the same places",
    "health/data_return": "discounted return that followed in the data, on average over its rows",
    "health/data_return_best": "largest discounted return of a row of the data",
    "health/data_return_low": "least discounted return that rewards such as the data's can add up to",
    "health/data_return_high": "largest one",
    "health/target_gap": "distance of the target networks from the networks, relative to their size",
    "health/ratio_min": "least probability ratio of the newest actions, new policy over the one that acted",
    "health/ratio_max": "largest such ratio",
    "health/kl_update": "KL divergence between the policy that acted and the one after the update",
    "health/entropy_share": "entropy as a share of the largest there can be; discrete actions only",
    "health/action_saturation": "share of action components at a bound (off-policy: of the mode); bounded Box only",
    "health/action_top_share": "share of the most frequent action; Discrete actions only",
    "health/exploration": "ε, temperature or noise scale of the explorer, where it has one",
    "health/obs_min": "least observation entry, images apart",
    "health/obs_max": "largest observation entry, images apart",
    "health/obs_still": "share of observation entries that did not change in the newest rows, images apart",
    "health/obs_clipped": "share of normalised observation entries at the normaliser's bound",
    "health/normalizer_shift": "largest move of a normaliser's mean in one iteration, in standard deviations",
    "health/reward_mean": "mean reward of the newest rows, before scaling",
    "health/reward_std": "its standard deviation",
    "health/reward_max": "its largest magnitude",
    "health/reward_zero": "share of rewards that are exactly 0",
    "health/intrinsic_share": "share of bonuses in what the learner is paid, by magnitude",
    "health/gradient_norm": "norm of the last gradient of the iteration, as it was applied",
    "health/update_ratio": "how far the parameters moved in the iteration, relative to their size",
    "health/dead_units": "largest share, over layers, of ReLU units that answered none of the newest rows",
    "health/saturated_units": "largest share, over layers, of tanh and sigmoid units near a bound on nearly all rows",
    "health/staleness": "mean age of what updates learn from, in environment steps",
    "health/policy_lag": "updates between the policy that acted and the one that learns; of rollouts that lag only",
}
"""Name → meaning. `Monitor` reports those that a run has."""

FAMILIES: dict[str, str] = {
    "gradient/": "the gradient norm of one layer",
    "update_ratio/": "the relative move of one layer",
}
"""Prefix of figures that come once a layer → meaning."""

TOPICS: dict[str, dict[str, list[str]]] = {
    "1 progress": {
        "return": ["return_mean", "eval/return_mean", "eval_stochastic/return_mean"],
        "episode length": ["length_mean", "eval/length_mean"],
        "success": ["success_rate", "eval/success_rate"],
        "reward": ["health/reward_mean", "health/reward_std", "health/reward_max"],
        "intrinsic": ["intrinsic_return_mean", "total_return_mean", "health/intrinsic_share"],
    },
    "2 policy": {
        "entropy": ["entropy", "health/entropy_share"],
        "KL": ["kl", "health/kl_update"],
        "clipping": ["clip_fraction", "clamped_fraction", "clip_range"],
        "ratio": ["health/ratio_min", "health/ratio_max"],
        "exploration": ["health/exploration", "exploration_std", "alpha"],
        "actions": ["health/action_saturation", "health/action_top_share"],
        "advantage": ["advantage_mean", "advantage_std"],
        "policy loss": ["policy_loss"],
    },
    "3 values": {
        "value loss": ["value_loss", "loss"],
        "explained variance": ["explained_variance"],
        "predicted and realised": ["health/value_mean", "health/return_realised", "q", "target"],
        "bias": ["health/value_bias"],
        "Q on the data": [
            "health/data_q",
            "health/data_q_policy",
            "health/data_return",
            "health/data_return_best",
        ],
        "range of returns": ["health/data_return_low", "health/data_return_high"],
        "TD error": ["td_error", "health/td_error_median", "health/td_error_p95"],
        "target gap": ["health/target_gap"],
    },
    "4 gradients": {
        "gradient norm": ["grad_norm", "value_grad_norm", "policy_grad_norm", "health/gradient_norm"],
        "learning rate": ["learning_rate"],
        "update to weight": ["health/update_ratio"],
        "units": ["health/dead_units", "health/saturated_units"],
    },
    "5 data": {
        "observations": ["health/obs_min", "health/obs_max"],
        "still or clipped": ["health/obs_still", "health/obs_clipped"],
        "normaliser": ["health/normalizer_shift"],
        "staleness": ["health/staleness"],
        "policy lag": ["health/policy_lag"],
    },
    "6 machine": {
        "fps": ["fps"],
        "cpu": ["system/cpu_percent"],
        "load": ["system/load"],
        "memory": ["system/memory_mib"],
    },
}
"""Topic → chart → figures: the layout that loggers may show."""
