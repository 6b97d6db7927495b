"""Keys of off-policy learning that mean something else, or count in another unit, in some other library.

Sources: Stable-Baselines3 2.7 and its contrib and zoo, CleanRL, RLlib of Ray 2.40, d3rlpy 2, rlkit, skrl, Spinning
Up, and the authors' code of TD3, TQC and REDQ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uniarena.config.errors import ConfigError, squash
from uniarena.config.section import Origin
from uniarena.config.wording import given

Fix = str | Callable[[Any], str]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _tau(value: Any) -> str:
    number = _number(value)
    if number is None or not 0.0 < number < 1.0:
        return "write learner.tau, the share that moves: 0.005 is usual"
    moved, other = (1.0 - number, number) if number > 0.5 else (number, 1.0 - number)
    return f"write learner.tau: {moved:.6g}, the share that moves ({other:.6g} of the target stays)"


def _train_freq(value: Any) -> str:
    number = _number(value)
    if number is None:
        return "write learner.train_every_env_steps, and learner.updates_per_env_step for how many"
    return (
        f"write learner.train_every_env_steps: {number:g} (× num_envs if it counted steps of all environments), and "
        f"learner.updates_per_env_step: {1 / max(number, 1):.4g} if one update was made each time"
    )


def _gradient_steps(value: Any) -> str:
    if value == -1:
        return "write learner.updates_per_env_step: 1"
    return f"write learner.updates_per_env_step = {given(value)} / (env steps between, those of all environments)"


def _blocks(value: Any) -> str:
    return (
        f"write learner.train_every_env_steps: {given(value)}, and learner.updates_per_env_step: 1 if as many updates "
        "follow"
    )


def _temperature(value: Any) -> str:
    return "write learner.alpha: auto, or leave it out" if value is True else "write learner.alpha: 0.2"


def _goals(value: Any) -> str:
    number = _number(value)
    ratio = "0.8" if number is None or number < 0 else f"{1 - 1 / (number + 1):.4g}"
    return f"write agent.buffer: {{her: {{ratio: {ratio}}}}}"


def _twins(value: Any) -> str:
    return f"write learner.n_critics: {2 if value else 1}"


def _noise(value: Any) -> str:
    kind = "ornstein_uhlenbeck" if "ornstein" in str(value).lower() else "gaussian_noise"
    return f"write agent.explorer: {{type: {kind}, sigma: 0.1}}, in half widths of the bounds"


def _lasting(value: Any) -> str:
    number = given(value)
    return f"write learner.target_update_env_steps: {number} (env steps) or target_update_updates: {number} (updates)"


_RATE = (
    "here learning_rate is the critics', and the policy's and alpha's too unless they have their own",
    "write learner.learning_rate, with learner.policy_learning_rate beside it for the policy",
)
_PERIOD = (
    "it counts env steps in DQN of Stable-Baselines3, and updates in SAC there and in d3rlpy",
    _lasting,
)
_COLLECT = ("how often and how many are two settings here, both by env steps", _train_freq)
_UPDATES = (
    "updates are counted for every env step, so that their share stays with any num_envs",
    _gradient_steps,
)
_BLOCKS = ("blocks of updates are two settings here, both by env steps", _blocks)
_WARM = (
    "random actions and the wait for the first update are one setting",
    "write learner.learning_starts, the larger of the two",
)
_AUTO = ("the temperature is one setting, adapted or a number", _temperature)
_GOALS = ("hindsight is given by the share of transitions that is relabelled", _goals)
_PRIORITIES = ("priorities are the buffer's", "write agent.buffer: {type: prioritized}")
_BETA = (
    "elsewhere it is a constant, or the start of a rise to 1; here beta rises from 0.4 to 1 by default",
    "write agent.buffer.beta: {type: linear, start: 0.4, end: 1}, or a number that stays",
)
_BUFFER = (
    "the buffer has a section of its own",
    "write agent.buffer: {capacity: 100_000}; hindsight is her: {strategy: future, ratio: 0.8} in it",
)
_NOISE = ("noise on actions is the explorer's", _noise)
_SIGMA = ("noise on actions is the explorer's, in half widths of the bounds", _noise)
_EPSILON = (
    "ε is the explorer's: a number, or from start to end over a part of the run",
    "write agent.explorer: {epsilon: {start: 1.0, end: 0.05, fraction: 0.1}}",
)
_TABLE: dict[str, tuple[str, Fix]] = {
    "polyak": ("it is the share that stays in Spinning Up, and the share that moves in skrl", _tau),
    "target_update_interval": _PERIOD,
    "target_update_freq": _PERIOD,
    "target_update_frequency": _PERIOD,
    "target_update_every": _PERIOD,
    "target_update": _PERIOD,
    "policy_and_target_update_period": (
        "the policy and the targets have a period each",
        "write learner.policy_delay; with td3 the targets follow it",
    ),
    "train_freq": _COLLECT,
    "train_frequency": _COLLECT,
    "training_frequency": _COLLECT,
    "gradient_steps": _UPDATES,
    "n_gradient_steps": _UPDATES,
    "n_updates": _UPDATES,
    "num_trains_per_train_loop": _UPDATES,
    "update_every": _BLOCKS,
    "update_interval": _BLOCKS,
    "training_intensity": (
        "it counts replayed rows for every env step",
        "write learner.updates_per_env_step = training_intensity / batch_size",
    ),
    "train_ratio": (
        "it counts replayed rows for every env step",
        "write learner.updates_per_env_step = train_ratio / batch_size",
    ),
    "update_after": _WARM,
    "update_start_step": _WARM,
    "q_lr": _RATE,
    "qf_lr": _RATE,
    "critic_lr": _RATE,
    "critic_learning_rate": _RATE,
    "autotune": _AUTO,
    "use_automatic_entropy_tuning": _AUTO,
    "automatic_entropy_tuning": _AUTO,
    "target_entropy_scale": (
        "the target is in nats: here half of the most that the actions allow",
        "write learner.target_entropy = target_entropy_scale · ln(number of actions)",
    ),
    "top_quantiles_to_drop": (
        "it is the sum over all critics in the authors' code; here each critic's",
        "write learner.drop_quantiles: 2, for each critic",
    ),
    "twin_q": ("critics are counted", _twins),
    "prioritized_replay": _PRIORITIES,
    "prioritized": _PRIORITIES,
    "use_per": _PRIORITIES,
    "per": _PRIORITIES,
    "prioritized_replay_beta": _BETA,
    "prioritized_replay_beta0": _BETA,
    "per_beta": _BETA,
    "replay_buffer_class": _BUFFER,
    "replay_buffer_kwargs": _BUFFER,
    "replay_buffer_config": _BUFFER,
    "n_sampled_goal": _GOALS,
    "replay_k": _GOALS,
    "action_noise": _NOISE,
    "noise_type": _NOISE,
    "act_noise": _SIGMA,
    "epsilon": _EPSILON,
    "epsilon_decay": _EPSILON,
    "exploration_config": _EPSILON,
}
_EXPLAINED = {squash(key): text for key, text in _TABLE.items()}
_DELAYED = ("sac", "tqc", "redq", "droq")
# What is always so, and the values that ask for it: nothing is to be written.
_ALWAYS: dict[str, tuple[Any, ...]] = {
    squash("optimize_memory_usage"): (True, False),  # observations are stored once, and nothing is lost by it
    squash("handle_timeout_termination"): (True,),
}


def explain(key: str, value: Any, learner: str | None, origin: Origin) -> bool:
    """Raise the answer for a key of off-policy learning with two meanings.

    Args:
        learner: the canonical name of the learner, where it is known.

    Returns:
        Whether the key asks for what is always so, and can be left out.

    Raises:
        ConfigError: the answer.
    """
    word = squash(key)
    if word in _ALWAYS and value in _ALWAYS[word]:
        return True
    found = _EXPLAINED.get(word)
    if word in _ALWAYS:
        found = ("time limits are always told from failures", "leave it out")
    if word == "policyfrequency" and learner in _DELAYED:
        found = (
            "CleanRL's SAC makes that many policy updates at each of its turns, so that none is left out",
            f"leave it out for the same number of updates, or write learner.policy_delay: {given(value)} for fewer",
        )
    if found is None:
        return False
    problem, fix = found
    hint = fix if isinstance(fix, str) else fix(value)
    raise ConfigError(f"{key} is not a key here: {problem}", origin.spelling, origin.location, hint)


NOTES: dict[str, tuple[str, str]] = {
    "n_steps": (
        "off-policy",
        "n_steps is the length of a rollout; off-policy there is none. What Stable-Baselines3 calls n_steps "
        "off-policy, the rewards summed before bootstrapping, is n_step",
    ),
    "n_epochs": ("off-policy", "for n_epochs: updates_per_env_step says how much is learned from each step"),
    "n_step": (
        "on-policy",
        "for n_step: advantage: n_step, with bootstrap_steps; n_steps is the length of a rollout",
    ),
    "ent_coef": ("sac", "for ent_coef: alpha is the price of entropy, in units of reward"),
    "tau": ("on-policy", "if tau is λ of GAE: gae_lambda"),
    "alpha": ("dqn", "if alpha is the exponent of priorities: agent.buffer.alpha"),
    "target_update_env_steps": ("sac td3", "for target_update_env_steps: target_update_updates"),
}
"""Key → the families that lack it, and what stands near it there, for keys left over from another learner."""
_FAMILIES = {
    "on-policy": "ppo a2c",
    "dqn": "dqn c51 qr_dqn iqn rainbow",
    "sac": "sac tqc redq droq",
    "td3": "td3 ddpg",
}


def notes(learner: str, keys: list[str]) -> list[str]:
    """A sentence for each of the keys, which `learner` lacks, that could be taken for one that it has."""
    family = next((name for name, members in _FAMILIES.items() if learner in members.split()), "")
    mine = {family} | (set() if family in ("", "on-policy") else {"off-policy"})
    return [NOTES[key][1] for key in keys if key in NOTES and mine & set(NOTES[key][0].split())]
