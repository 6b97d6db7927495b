"""The one table of spellings that users know from elsewhere. Only `canonical.py` applies it, once, at load.

Keys and names compare by letters and digits alone: `FrameStack`, `frame-stack` and `frame_stack` are one.
Sources: Stable-Baselines3 and its zoo, CleanRL, RLlib, rsl_rl, rl_games, skrl, Gymnasium.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from uniarena import registry
from uniarena.config.errors import closest, squash
from uniarena.config.fields import field_types
from uniarena.config.schema import SECTIONS

# -- keys: canonical path → other spellings ------------------------------------------------------------------
_TOP = {
    "experiment": "exp, run",
    "environment": "env, environments, envs",
    "agent": "agents",
    "learner": "algo, algorithm",
    "training": "train, trainer",
    "callbacks": "callback",
    "experiment.seed": "seed, random_seed",
    "environment.id": "env_id, gym_id, env_name, environment_id",
    "environment.num_envs": "num_envs, n_envs",
    "training.total_timesteps": "total_timesteps, timesteps, n_timesteps",
    "training.device": "device",
    "learner.optimizer": "optimizer",
    "agent.policy": "policy",
}
_EXPERIMENT = {
    "experiment.name": "exp_name, run_name, experiment_name",
    "experiment.project": "project_name",
    "experiment.seed": "random_seed",
    "experiment.run_dir": "output_dir, out_dir, log_dir, save_dir, run_folder, results_dir",
    "experiment.notes": "description, comment, note",
    "experiment.tags": "tag",
    "experiment.loggers": "logger, logging, log_to",
    "training.device": "device",
}
_ENVIRONMENT = {
    "environment.id": "env_id, gym_id, env_name, name, env, environment, environment_id, type",
    "environment.num_envs": "n_envs, num_env, n_env, num_environments, num_actors, num_workers, n_workers",
    "environment.wrappers": "wrapper, env_wrapper",
    "environment.kwargs": "env_kwargs, args, arguments, env_config, make_kwargs",
    "environment.vectorization": "vec_env, vec_env_cls, vectorization_mode, vector, backend, vec_env_type",
    "environment.max_episode_steps": "max_steps, time_limit, episode_length, max_episode_length, horizon",
    "environment.action_mask": "action_masks, mask",
    "experiment.seed": "seed",
}
_AGENT = {
    "learner": "learner",
    "learner.type": "type, name, algo, algorithm, class, agent_type, kind",
    "learner.optimizer": "optim",
    "agent.policy": "policy_network, policy_net, actor, actor_network, pi",
    "agent.value": "value_network, value_net, value_function, critic, critic_network, vf",
    "agent.explorer": "exploration, explore",
    "agent.intrinsic": "intrinsic_reward, intrinsic_motivation, curiosity, bonus, bonuses",
    "agent.buffer": "replay_buffer, rollout_buffer, replay, storage",
    "agent.memory": "memory, recurrent, recurrence",
    "agent.init_from": "checkpoint, pretrained, load_from, warm_start",
}
_LEARNER = {
    "learner.type": "name, algo, algorithm, class, kind",
    "learner.learning_rate": "lr, step_size",
    "learner.gamma": "discount, discount_factor, discounting",
    "learner.n_steps": (
        "num_steps, rollout_length, rollout_fragment_length, horizon_length, num_steps_per_env, "
        "steps_per_env, rollout_steps, unroll_length, n_rollout_steps"
    ),
    "learner.train_batch_size": "train_batch",
    "learner.batch_size": "minibatch_size, mini_batch_size, sgd_minibatch_size",
    "learner.n_epochs": (
        "num_epochs, update_epochs, num_sgd_iter, mini_epochs, num_learning_epochs, ppo_epochs, noptepochs, "
        "epochs, k_epochs, sgd_iters"
    ),
    "learner.advantage": "advantage_estimator, adv_estimator",
    "learner.gae_lambda": "gae_lam, lam, lambda, gae, gae_tau",
    "learner.normalize_advantage": (
        "norm_adv, normalize_advantages, norm_advantage, advantage_normalization, normalize_adv"
    ),
    "learner.clip": "clip_type, clipping",
    "learner.clip_range": (
        "clip_coef, clip_param, clip_epsilon, clip_eps, clip_ratio, eps_clip, e_clip, ratio_clip"
    ),
    "learner.vf_coef": (
        "value_coef, value_coefficient, vf_loss_coeff, vf_loss_coef, value_loss_coef, value_loss_coeff, "
        "value_loss_scale, critic_coef, baseline_cost, vf_weight"
    ),
    "learner.value_clip": "clip_range_vf, clip_value, vf_clip, clip_range_value",
    "learner.ent_coef": (
        "entropy_coef, entropy_coeff, entropy_coefficient, entropy_loss_scale, entropy_weight, entropy_cost, "
        "ent_weight"
    ),
    "learner.target_kl": "max_kl, kl_threshold",
    "learner.max_grad_norm": (
        "clip_grad_norm, grad_clip, grad_norm_clip, grad_norm_clipping, gradient_clip, clip_gradient, "
        "gradient_clipping, max_gradient_norm, grad_clip_norm"
    ),
    "learner.optimizer": "optim",
    "environment.num_envs": "num_envs, n_envs",
    "training.total_timesteps": "total_timesteps",
}
_TRAINING = {
    "training.total_timesteps": (
        "total_steps, timesteps, n_timesteps, num_timesteps, max_timesteps, max_steps, total_env_steps, "
        "env_steps, num_env_steps, total_frames, timesteps_total, steps"
    ),
    "training.log_interval": "logging_interval",
    "training.save_interval": "checkpoint_interval, saving_interval",
    "training.eval_interval": "evaluation_interval",
    "training.n_eval_episodes": "num_eval_episodes, eval_episodes, evaluation_episodes",
    "training.device": "accelerator",
    "training.threads": "num_threads, n_threads, torch_threads",
    "training.max_wall_time": "wall_time, time_budget, max_time, max_runtime, time_limit",
    "training.keep_checkpoints": "max_checkpoints, keep_last, n_checkpoints, save_total_limit",
    "environment.num_envs": "num_envs, n_envs, num_workers, n_workers, num_env_runners, num_actors",
    "experiment.seed": "seed",
    "distributed": "distributed",
    "callbacks": "callbacks, callback",
}
_DISTRIBUTED = {
    "distributed.backend": "communication, comm_backend",
    "distributed.num_learners": "n_learners, world_size, num_replicas, replicas, num_gpus",
    "distributed.sync_period": "sync_interval, sync_every, local_steps",
}
_NETWORK = {
    "network": "net, class, module, type, architecture, policy_class, name",
    "hidden_sizes": (
        "net_arch, hidden_dims, hidden_layers, hidden_layer_sizes, layers, hidden_units, fcnet_hiddens, "
        "hidden_dim, hidden_size, hidden, units, actor_hidden_dims, critic_hidden_dims"
    ),
    "activation": "activation_fn, act_fn, act, nonlinearity, fcnet_activation, activation_function",
    "orthogonal": "ortho_init, orthogonal_init, orthogonal_initialization",
    "distribution": "dist, distribution_class, action_distribution, action_dist",
    "log_std_init": "init_log_std, initial_log_std, log_std",
    "gsde": "use_sde, use_gsde, sde, state_dependent_exploration",
    "share_encoder": "share_features_extractor, shared_encoder, vf_share_layers",
    "layout": "image_layout, image_format, data_format",
    "encoders": "encoder",
}
# Keys of built-in components, by kind. The learner's are above, because other sections use them too.
_TYPE = "name, class, kind, module"
_COMPONENT = {
    "wrapper": {
        "type": "name, class, wrapper, module",
        "n_frames": "n_stack, num_stack, stack_size, num_frames, frames",
        "max_episode_steps": "max_steps, limit, time_limit",
        "probability": "prob, repeat_action_probability, sticky_probability",
        "scale": "factor, reward_scale",
        "low": "min, min_reward",
        "high": "max, max_reward",
    },
    "bonus": {
        "type": "module, name, class, method, kind, intrinsic_type",
        "learning_rate": "lr",
        "feature_dim": "features_dim, output_dim, embedding_dim, embed_dim, feature_size",
        "reward_scale": (
            "weight, coef, coefficient, beta, eta, intrinsic_coef, int_coef, intrinsic_reward_coef"
        ),
        "update_proportion": "predictor_proportion, update_fraction",
        "update_period": "update_every, update_interval, update_freq",
        "hidden_sizes": "hidden_dims, hidden_layers, net_arch",
    },
    "explorer": {"type": _TYPE},
    "buffer": {"type": _TYPE, "train_batch_size": "train_batch"},
    "callback": {"type": f"{_TYPE}, callback"},
    "logger": {"type": _TYPE},
    "optimizer": {
        "type": f"{_TYPE}, optimizer",
        "lr": "learning_rate",
        "eps": "epsilon, adam_eps, adam_epsilon, optimizer_eps",
        "weight_decay": "wd, l2",
    },
    "schedule": {
        "type": "name, kind, schedule",
        "start": "initial, initial_value, from, start_value",
        "end": "final, final_value, to, end_value",
    },
}

# -- names: kind → canonical → other spellings ---------------------------------------------------------------
_NAMES = {
    "learner": {
        "ppo": "ppo_clip, ppo2, proximal_policy_optimization",
        "a2c": "actor_critic, advantage_actor_critic",
    },
    "network": {
        "mlp": "MlpPolicy, MlpValue, MlpCritic, MultiInputPolicy, ActorCriticPolicy, feedforward, dense, fc",
        "nature_cnn": "CnnPolicy, CnnValue, CnnCritic, ActorCriticCnnPolicy, cnn, nature",
        "impala_cnn": "impala, impala_resnet, resnet",
        "minatar_cnn": "minatar",
    },
    "explorer": {"sample": "Gaussian, Stochastic, Sampling, Categorical, on_policy, policy"},
    "bonus": {"rnd": "random_network_distillation"},
    "buffer": {
        "rollout": "OnPolicy, trajectory",
        "replay": "OffPolicy, experience_replay, replay_memory, uniform_replay",
    },
    "optimizer": {"sam": "SAMPO, sharpness_aware_minimization"},
    "schedule": {
        "constant": "fixed",
        "linear": "linear_decay, anneal, linear_anneal",
        "cosine": "cosine_annealing, cosine_decay",
    },
    "callback": {
        "evaluate": "eval, evaluation, evaluator",
        "checkpoint": "model_checkpoint, save, checkpointing, saver",
        "early_stop": (
            "early_stopping, stop_training_on_reward_threshold, stop_training_on_no_model_improvement"
        ),
        "progress": "progress_bar",
        "video": "record_video, video_recorder, vec_video_recorder",
        "log": "logger, logging, console",
    },
    "logger": {"jsonl": "json, file", "tensorboard": "tb, tensor_board"},
    "wrapper": {
        "normalize_observation": (
            "normalize_observations, normalize_obs, norm_obs, observation_normalization, obs_normalization"
        ),
        "normalize_reward": (
            "normalize_rewards, norm_reward, norm_rew, reward_normalization, reward_scaling"
        ),
        "frame_stack": "FrameStackObservation, VecFrameStack, stack_frames, stack",
        "preprocess_image": (
            "image_preprocessing, ResizeObservation, GrayscaleObservation, WarpFrame, image"
        ),
        "clip_reward": "reward_clip, reward_clipping, clip_rewards, ClipRewardEnv",
        "scale_reward": "reward_scale, reward_scaler",
        "rescale_action": "rescale_actions, action_rescale, normalize_action",
        "clip_action": "clip_actions, action_clip",
        "sticky_actions": "sticky_action, StickyActionEnv",
        "time_limit": "episode_limit, limit_time, step_limit",
        "episodic_life": "EpisodicLifeEnv, life_loss, terminal_on_life_loss",
        "record_video": "video, video_recorder, monitor_video",
    },
}
# Endings that say the kind once more: PPO_Agent, ReplayBuffer, GaussianExplorer, EvalCallback.
_ENDINGS: dict[str, tuple[str, ...]] = {
    "learner": ("agent", "learner", "algorithm", "policy"),
    "env": (),
    "wrapper": ("wrapper",),
    "network": ("policy", "value", "network", "net", "encoder", "extractor"),
    "explorer": ("explorer", "exploration", "policy"),
    "bonus": ("bonus", "module", "curiosity"),
    "buffer": ("buffer", "memory"),
    "optimizer": ("optimizer",),
    "schedule": ("schedule", "scheduler", "lr"),
    "callback": ("callback",),
    "logger": ("logger", "writer"),
}
# Values of single keys.
_VALUES = {
    "environment.vectorization": {
        "async": "subproc, SubprocVecEnv, AsyncVectorEnv, multiprocessing, parallel, process, processes",
        "sync": "SyncVectorEnv",
        "serial": "DummyVecEnv, dummy, single",
        "native": "vector_entry_point, vector",
        "tensor": "gpu, torch",
    },
    "activation": {"silu": "swish", "tanh": "", "relu": "", "elu": "", "gelu": "", "leaky_relu": ""},
    "distribution": {
        "gaussian": "normal, diag_gaussian",
        "squashed_gaussian": "tanh_normal, tanh_gaussian, squashed, squashed_normal, squashed_diag_gaussian",
        "beta": "",
        "auto": "",
    },
}


def _words(spellings: Mapping[str, str]) -> dict[str, str]:
    return {squash(word): name for name, words in spellings.items() for word in words.split(",") if word}


def _keys(spellings: Mapping[str, str], fields: Iterable[str], section: str = "") -> dict[str, str]:
    """Squashed spelling → canonical path; the section's own fields are spellings of themselves."""
    own = {squash(name): f"{section}.{name}" if section else name for name in fields}
    return _words(spellings) | own


LEARNER_KEYS = tuple(path.partition(".")[2] for path in _LEARNER if path.startswith("learner."))

KEYS: dict[str, dict[str, str]] = {
    "": _keys(_TOP, SECTIONS),
    "experiment": _keys(_EXPERIMENT, field_types(SECTIONS["experiment"]), "experiment"),
    "environment": _keys(_ENVIRONMENT, field_types(SECTIONS["environment"]), "environment"),
    "agent": _keys(_AGENT, field_types(SECTIONS["agent"]), "agent"),
    "learner": _keys(_LEARNER, LEARNER_KEYS, "learner"),
    "training": _keys(_TRAINING, field_types(SECTIONS["training"]), "training"),
    "distributed": _keys(_DISTRIBUTED, field_types(SECTIONS["distributed"]), "distributed"),
}
NETWORK_KEYS = _keys(_NETWORK, _NETWORK)
COMPONENT_KEYS = {kind: _keys(keys, keys) for kind, keys in _COMPONENT.items()}
NAMES = {kind: _keys(names, names) for kind, names in _NAMES.items()}
VALUES = {key: _keys(values, values) for key, values in _VALUES.items()}


def canonical_name(kind: str, name: str) -> str:
    """The registered name that a spelling stands for; the spelling itself where there is none."""
    if ":" in name or name in registry.BUILT_IN[kind]:
        return name
    word = squash(name)
    ends = [word.removesuffix(ending) for ending in _ENDINGS[kind] if word.endswith(ending)]
    spellings = [word, *(end for end in ends if end)]
    built_in = {squash(known): known for known in registry.BUILT_IN[kind]}
    for spelling in spellings:
        found = built_in.get(spelling) or NAMES.get(kind, {}).get(spelling)
        if found:
            return found
    others = {squash(known): known for known in registry.names(kind)}
    return next((others[spelling] for spelling in spellings if spelling in others), name)


def closest_name(kind: str, name: str, choices: Iterable[str]) -> str | None:
    """The registered name most likely meant by one that is unknown; other spellings count too."""
    known = dict(NAMES.get(kind, {}))
    for choice in choices:
        known |= {squash(choice) + ending: choice for ending in ("", *_ENDINGS[kind])}
    near = closest(name, known)
    return known[near] if near and known[near] in choices else None


def canonical_value(key: str, value: str) -> str:
    """The value that a spelling stands for, at a key whose values have several spellings."""
    return VALUES[key].get(squash(value.rpartition(".")[2]), value)


def meant(key: str, names: Iterable[str]) -> str | None:
    """The one of `names` that `key` is another spelling of."""
    choices, word = {squash(name): name for name in names}, squash(key)
    learner = {spelling: path.rpartition(".")[2] for spelling, path in KEYS["learner"].items()}
    for table in (*COMPONENT_KEYS.values(), NETWORK_KEYS, learner):
        target = squash(table.get(word, ""))
        if target in choices:
            return choices[target]
    return choices.get(word)


def home_of(path: str, key: str) -> str | None:
    """Where a key that is unknown at `path` belongs, if there is exactly one such place."""
    word, here = squash(key), path.partition(".")[0]
    homes = {table[word] for section, table in KEYS.items() if section not in ("", here) and word in table}
    if word in NETWORK_KEYS and not path.startswith(("agent.policy", "agent.value")):
        homes.add(f"agent.policy.{NETWORK_KEYS[word]}")
    homes = {home for home in homes if home.rpartition(".")[0] != path}
    return homes.pop() if len(homes) == 1 else None
