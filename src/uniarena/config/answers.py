"""What is answered with an explanation, not accepted: planned things, and keys with two meanings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from uniarena.config.errors import ConfigError, Location, listed, squash
from uniarena.config.section import Origin, Section, join

LEAVE_OUT = "leave it out for now"


def _squashed(names: str) -> set[str]:
    return {squash(name) for name in names.split()}


_WANDB, _MLFLOW = "Weights & Biases logging comes", "MLflow logging comes"

# Key path → what is planned there.
_LATER = {
    "opponents": "self-play comes",
    "multi_agent": "multi-agent training comes",
    "environment.multi_agent": "multi-agent training comes",
    "environment.agents": "multi-agent training comes",
    "sweep": "hyper-parameter search comes",
    "tune": "hyper-parameter search comes",
    "hydra": "running under Hydra comes",
    "defaults": "Hydra's config composition comes",
    "agent.world_model": "world models come",
    "agent.dynamics": "dynamics models come",
    "agent.planner": "planners come",
    "agent.reward_model": "reward models come",
    "agent.engine": "other engines than torch come",
    "distributed.compression": "gradient compression comes",
    "distributed.mode": "distributed training over several processes comes",
    "distributed.num_actors": "distributed training over several processes comes",
    **{f"{section}mlflow": _MLFLOW for section in ("", "experiment.", "training.")},
    **{f"{section}wandb": _WANDB for section in ("", "experiment.", "training.")},
    **{
        f"{section}{key}": _WANDB
        for section in ("", "experiment.", "training.")
        for key in ("use_wandb", "track", "wandb_project", "wandb_project_name", "wandb_entity")
    },
}

# Kind → names of planned components; a plug-in that registers such a name makes it available today.
_NAMES_LATER = {
    "learner": ("mbpo dreamer dreamer_v3 gail airl dpo ippo mappo maddpg qmix vdn maml reptile grpo gspo"),
    "network": "gcn gat",
    "bonus": "ngu",
    "callback": "wandb WandbCallback mlflow MlflowCallback self_play optuna pruning",
    "logger": "wandb weights_and_biases WandbLogger mlflow MlflowLogger",
}
_WORDS_LATER = {kind: _squashed(names) for kind, names in _NAMES_LATER.items()}

# Section → key → (what is the matter, what to write). Keys with two meanings, or with another unit elsewhere.
_BY_SIZE = "the minibatch is given by its size"
_IN_PLACE = "a schedule stands where the value would"
_LINEAR = "learner.learning_rate: {type: linear, start: 3e-4, end: 0}"
_BUNDLE = ("bundles several steps", "write preprocess_image, frame_stack and clip_reward")
_GROWING = (
    "a batch that grows is a callback",
    "write callbacks: [{type: adaptive_batch, base_batch: 256, max_batch: 4096}]",
)
_CURRICULUM = ("it is a callback", "write callbacks: [{type: curriculum, start: 0, end: 1}]")
_STAGES = ("stages are a list at the top of a config", "write stages: [{name: …, training: {…}}, …]")
_EXPLAINED: dict[str, dict[str, tuple[str, str]]] = {
    "": {"curriculum": _CURRICULUM, "stage": _STAGES},
    "training": {
        "curriculum": _CURRICULUM,
        "stages": _STAGES,
        "epochs": (
            "it could be passes over a batch or turns of the loop",
            "write learner.n_epochs or training.total_timesteps",
        ),
        "max_epochs": ("a run's length is counted in environment steps", "write training.total_timesteps"),
        "iterations": ("a run's length is counted in environment steps", "write training.total_timesteps"),
        "cuda": (
            "the device is named",
            "write training.device: cuda (auto, the default, takes it if it is there)",
        ),
        **{
            f"{word}_{unit}": (
                "other libraries count calls, updates or steps by it",
                f"write training.{name}_every_env_steps (env steps) or training.{name}_interval (epochs)",
            )
            for word, name in (
                ("log", "log"),
                ("save", "save"),
                ("checkpoint", "save"),
                ("eval", "eval"),
                ("evaluation", "eval"),
            )
            for unit in ("freq", "frequency", "every", "steps")
        },
    },
    "learner": {
        "num_minibatches": (_BY_SIZE, "write learner.batch_size = n_steps · num_envs / num_minibatches"),
        "n_minibatches": (_BY_SIZE, "write learner.batch_size = n_steps · num_envs / n_minibatches"),
        "num_mini_batches": (_BY_SIZE, "write learner.batch_size = n_steps · num_envs / num_mini_batches"),
        **dict.fromkeys(
            ("adaptive_batch", "base_batch", "base_batch_size", "max_batch", "max_batch_size"), _GROWING
        ),
        "vf_clip_param": (
            "it bounds a squared error elsewhere; here the movement of the value is bounded",
            "write learner.value_clip: 0.2, or leave it out",
        ),
        "kl_target": (
            "it steers a KL penalty elsewhere, which says its target itself here",
            "write learner.kl_coef: {type: kl_adaptive, start: 0.2, target_kl: 0.01}, or leave it out",
        ),
        "desired_kl": (
            "it steers the learning rate elsewhere, which says its target itself here",
            "write learner.learning_rate: {type: kl_adaptive, start: 1e-3, target_kl: 0.01}, or leave it out",
        ),
        "clip_vloss": (
            "value clipping is given by its range",
            "write learner.value_clip: 0.2 for true, leave it out for false",
        ),
        "anneal_lr": (_IN_PLACE, f"write {_LINEAR} for true, leave it out for false"),
        "lr_schedule": (_IN_PLACE, f"write {_LINEAR}"),
        "policy_kwargs": (
            "the networks have a section of their own",
            "write agent.policy: {hidden_sizes: [64, 64], activation: tanh}",
        ),
    },
    "environment": {
        "curriculum": _CURRICULUM,
        "normalize": (
            "normalisation is a wrapper",
            "write wrappers: [normalize_observation, normalize_reward]",
        ),
        "normalize_observation": ("normalisation is a wrapper", "write wrappers: [normalize_observation]"),
        "normalize_reward": ("normalisation is a wrapper", "write wrappers: [normalize_reward]"),
        "frame_stack": ("frame stacking is a wrapper", "write wrappers: [{type: frame_stack, n_frames: 4}]"),
        "render_mode": (
            "rendering is switched on where it is needed",
            "write wrappers: [record_video], or callbacks: [video]",
        ),
    },
}
_WRAPPERS = {"ataripreprocessing": _BUNDLE, "atariwrapper": _BUNDLE}
# Kind → other libraries' classes that are options here.
_OPTIONS = {
    "learner": {
        **dict.fromkeys(("ddqn", "doubledqn"), "write type: dqn, double: true"),
        "duelingdqn": "write type: dqn, dueling: true",
        "noisydqn": "write type: dqn, noisy: true, and agent.explorer: sample",
        **dict.fromkeys(
            ("recurrentppo", "ppolstm", "pporecurrent"), "write type: ppo, and agent.memory: {type: lstm}"
        ),
        **dict.fromkeys(("r2d2", "drqn"), "write type: dqn, double: true, and agent.memory: {type: lstm}"),
    },
    "network": {
        **dict.fromkeys(
            ("lstm", "rnn", "mlplstmpolicy", "cnnlstmpolicy", "multiinputlstmpolicy"),
            "write agent.memory: lstm",
        ),
        **dict.fromkeys(("gru", "mlpgrupolicy"), "write agent.memory: gru"),
        **dict.fromkeys(("transformer", "gtrxl", "attention"), "write agent.memory: gtrxl"),
        **dict.fromkeys(
            ("gnn", "graph", "deepsets", "set"),
            "write agent.policy.encoders: {LEAF: {network: graph}}, with the leaf that holds the entities",
        ),
    },
    "buffer": dict.fromkeys(
        ("her", "herreplaybuffer", "hindsight", "hindsightreplaybuffer"), "write type: replay, her: {}"
    ),
}
# Wrappers for what is always there: leaving them out changes nothing.
NEEDLESS_WRAPPERS = _squashed("RecordEpisodeStatistics Monitor VecMonitor OrderEnforcing PassiveEnvChecker")

_REPLAY_KEYS = _squashed(
    "capacity buffer_size size memory_size prioritized priority per alpha beta n_step her learning_starts "
    "warmup storage optimize_memory_usage"
)
_MEMORY_KEYS = _squashed(
    "hidden_size lstm_hidden_size num_layers n_layers window context_length n_heads num_heads cell lstm gru "
    "attention d_model layers"
)
_REPLAY_NAMES = ("replay", "buffer", "prioritized", "rollout", "onpolicy", "offpolicy")
_MEMORY_NAMES = ("lstm", "gru", "rnn", "attention", "transformer", "recurrent", "gtrxl", "memorynetwork")

_LATER_KEYS = {squash(path): text for path, text in _LATER.items()}
_EXPLAINED_KEYS = {
    section: {squash(key): text for key, text in keys.items()} for section, keys in _EXPLAINED.items()
}


def refuse(section: str, key: str, value: Any, origin: Origin) -> bool:
    """Raise the answer for a planned key or one with two meanings; say nothing about any other.

    Returns:
        Whether the key is a planned one that is switched off, and so means nothing.

    Raises:
        ConfigError: the answer.
    """
    text = _LATER_KEYS.get(squash(join(section, key)))
    if text and value in (None, False, [], {}, "torch"):
        return True
    if text:
        raise ConfigError(f"{text} with a later version", origin.spelling, origin.location, LEAVE_OUT)
    explained = _EXPLAINED_KEYS.get(section, {}).get(squash(key))
    if explained:
        raise ConfigError(
            f"{key} is not a key here: {explained[0]}", origin.spelling, origin.location, explained[1]
        )
    return False


def refuse_name(kind: str, name: str, choices: list[str], origin: Origin) -> None:
    """Raise the answer for the name of a planned component, or of one that goes by other names here.

    Raises:
        ConfigError: the answer.
    """
    word = squash(name)
    if kind == "wrapper" and word in _WRAPPERS:
        problem, hint = _WRAPPERS[word]
        raise ConfigError(f"{name} {problem} here", origin.spelling, origin.location, hint)
    stem = word.removesuffix("agent").removesuffix(kind)
    option = _OPTIONS.get(kind, {}).get(word) or _OPTIONS.get(kind, {}).get(stem)
    if option:
        raise ConfigError(f"{name} is not a {kind} of its own here", origin.spelling, origin.location, option)
    later = _WORDS_LATER.get(kind, set())
    if word in later or stem in later:
        message = f"{name} comes with a later version; this one has {listed(choices)}"
        raise ConfigError(message, origin.spelling, origin.location, f"write one of these, or {LEAVE_OUT}")


def refuse_gaussian(path: str, value: Any, learner: str | None, origin: Origin) -> None:
    """`Gaussian` is the policy's own distribution, which a deterministic policy does not have.

    Raises:
        ConfigError: an explorer of that name with a learner whose policy is deterministic.
    """
    name = value.get("type", value.get("name")) if isinstance(value, Mapping) else value
    word = squash(name) if isinstance(name, str) else ""
    if path == "agent.explorer" and learner in ("td3", "ddpg") and word in ("gaussian", "gaussianexplorer"):
        raise ConfigError(
            f"{name} stands for sample, the policy's own distribution, and the policy of {learner} is deterministic",
            origin.spelling,
            origin.location,
            "write gaussian_noise",
        )


def refuse_hydra(tree: Any, path: str, where: Location | None) -> None:
    """Raise if a config uses the syntax of Hydra or OmegaConf.

    Raises:
        ConfigError: naming the first such place.
    """
    if isinstance(tree, str) and re.search(r"\$\{[^}]*\}", tree):
        message = f"interpolation as in Hydra comes with a later version; got {tree!r}"
        raise ConfigError(message, path, where, "write the value itself")
    if not isinstance(tree, Mapping | list | tuple):
        return
    for key, value in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
        here = (tree.where(key) if isinstance(tree, Section) else None) or where
        if key in ("_target_", "_partial_"):
            message = f"building objects by {key} as in Hydra comes with a later version"
            raise ConfigError(message, join(path, key), here, "write type: package.module:Name")
        refuse_hydra(value, join(path, key), here)


def refuse_replay(value: Any, origin: Origin) -> None:
    """`agent.memory` is recurrent or attention memory: replay is sent to `agent.buffer`.

    Raises:
        ConfigError: naming the key that belongs there.
    """
    section = Section({"type": value}, origin.location) if isinstance(value, str) else value
    key = _misplaced(section, _REPLAY_KEYS, _REPLAY_NAMES) if isinstance(section, Mapping) else None
    if key is not None:
        message = f"{_entry(section, key)} is about replay; agent.memory is recurrent or attention memory"
        where = (section.where(key) if isinstance(section, Section) else None) or origin.location
        raise ConfigError(message, join(origin.spelling, key), where, "write it under agent.buffer")


def refuse_buffer(section: Section, origin: Origin) -> None:
    """`agent.buffer` keeps experience: recurrent and attention memory are sent to `agent.memory`.

    Raises:
        ConfigError: naming the key that belongs there.
    """
    key = _misplaced(section, _MEMORY_KEYS, _MEMORY_NAMES)
    if key is not None:
        message = f"{_entry(section, key)} is about recurrent or attention memory; agent.buffer is replay"
        where = section.where(key) or origin.location
        raise ConfigError(message, join(origin.spelling, key), where, "write it under agent.memory")


def _misplaced(section: Mapping[str, Any], keys: set[str], names: tuple[str, ...]) -> str | None:
    """The key of a section that is about the other of the two kinds of memory."""
    for key, value in section.items():
        named = squash(str(key)) in ("type", "name", "class", "kind") and isinstance(value, str)
        if squash(str(key)) in keys or (named and any(word in squash(value) for word in names)):
            return str(key)
    return None


def _entry(section: Mapping[str, Any], key: str) -> str:
    return f"{key}: {section[key]}" if isinstance(section[key], str) else key
