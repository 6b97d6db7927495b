"""The one table of spellings that users know from elsewhere, as text; `aliases.py` makes look-ups of it.

Keys and names compare by letters and digits alone: `FrameStack`, `frame-stack` and `frame_stack` are one.
Sources: Stable-Baselines3 and its zoo, CleanRL, RLlib, rsl_rl, rl_games, skrl, d3rlpy, rlkit, REDQ, Gymnasium.
"""

from __future__ import annotations

# -- keys: canonical path → other spellings ------------------------------------------------------------------
TOP = {
    "experiment": "exp, run",
    "environment": "env, environments, envs",
    "agent": "agents",
    "learner": "algo, algorithm",
    "sampling": "sampler, collector, rollout_worker",
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
EXPERIMENT = {
    "experiment.name": "exp_name, run_name, experiment_name",
    "experiment.project": "project_name",
    "experiment.seed": "random_seed",
    "experiment.run_dir": "output_dir, out_dir, log_dir, save_dir, run_folder, results_dir",
    "experiment.notes": "description, comment, note",
    "experiment.tags": "tag",
    "experiment.loggers": "logger, logging, log_to",
    "training.device": "device",
}
ENVIRONMENT = {
    "environment.id": "env_id, gym_id, env_name, name, env, environment, environment_id, type",
    "environment.num_envs": "n_envs, num_env, n_env, num_environments, num_actors, num_workers, n_workers",
    "environment.wrappers": "wrapper, env_wrapper",
    "environment.kwargs": "env_kwargs, args, arguments, env_config, make_kwargs",
    "environment.vectorization": "vec_env, vec_env_cls, vectorization_mode, vector, backend, vec_env_type",
    "environment.max_episode_steps": "max_steps, time_limit, episode_length, max_episode_length, horizon",
    "environment.action_mask": "action_masks, mask",
    "experiment.seed": "seed",
}
AGENT = {
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
LEARNER = {
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
    "learner.kl_coef": "kl_coeff, kl_penalty, kl_penalty_coef",
    "learner.cg_steps": "cg_max_steps, cg_iters, cg_iterations, conjugate_gradient_steps",
    "learner.max_grad_norm": (
        "clip_grad_norm, grad_clip, grad_norm_clip, grad_norm_clipping, gradient_clip, clip_gradient, "
        "gradient_clipping, max_gradient_norm, grad_clip_norm"
    ),
    "learner.optimizer": "optim",
    "environment.num_envs": "num_envs, n_envs",
    "training.total_timesteps": "total_timesteps",
}
# Off-policy. Only names whose unit is ours everywhere: the others are answered, in `answers_off_policy.py`.
_OFF_POLICY = {
    "learner.learning_starts": (
        "start_steps, warmup_steps, warm_up_steps, random_steps, start_timesteps, learning_start, "
        "min_num_steps_before_training, num_steps_sampled_before_learning_starts"
    ),
    "learner.updates_per_env_step": (
        "utd_ratio, utd, update_to_data_ratio, replay_ratio, updates_per_step, n_updates_per_step"
    ),
    "learner.n_step": "n_step_return, n_step_returns, multi_step, estimation_step, n_step_return_horizon",
    "learner.tau": (
        "soft_update_rate, soft_update_tau, soft_target_tau, target_tau, critic_tau, target_update_tau, "
        "target_smoothing_coefficient"
    ),
    "learner.target_update_updates": "target_update_period",
    "learner.target_update_env_steps": "target_network_frequency, target_network_update_freq",
    "learner.policy_delay": "policy_freq, policy_frequency, actor_delay, update_actor_interval",
    "learner.target_noise": "target_policy_noise, policy_noise, target_smoothing_sigma",
    "learner.target_noise_clip": "noise_clip, target_policy_noise_clip, target_smoothing_clip",
    "learner.policy_learning_rate": "policy_lr, actor_lr, actor_learning_rate",
    "learner.alpha_init": "initial_alpha, init_alpha, init_temperature, initial_temperature",
    "learner.alpha_learning_rate": "alpha_lr, temp_learning_rate, entropy_learning_rate, ent_coef_lr",
    "learner.n_critics": "num_critics, num_q, n_q, n_qs, num_qs, n_q_networks",
    "learner.subset_size": "num_min, num_min_qs",
    "learner.n_quantiles": "num_quantiles",
    "learner.drop_quantiles": "top_quantiles_to_drop_per_net, quantiles_to_drop_per_net",
    "learner.n_atoms": "num_atoms, atoms",
    "learner.double": "double_q, double_dqn, use_double",
    "learner.dueling": "dueling_dqn, use_dueling",
    "learner.noisy": "noisy_net, noisy_nets, noisy_networks, use_noisy",
    "learner.noisy_sigma": "sigma0, noisy_std",
    "learner.layer_norm": "use_layer_norm, critic_layer_norm",
    "learner.dropout": "dropout_rate, critic_dropout_rate, target_drop_rate",
    "agent.buffer.capacity": (
        "buffer_size, buffer_capacity, replay_size, replay_capacity, replay_buffer_size, memory_size, "
        "max_replay_buffer_size"
    ),
    "agent.buffer.alpha": "prioritized_replay_alpha, per_alpha",
    "agent.buffer.epsilon": "prioritized_replay_eps, per_eps",
    "agent.buffer.her.strategy": "goal_selection_strategy",
    "agent.explorer.epsilon.start": (
        "exploration_initial_eps, start_e, initial_epsilon, epsilon_start, eps_start"
    ),
    "agent.explorer.epsilon.end": "exploration_final_eps, end_e, final_epsilon, epsilon_end, eps_end",
    "agent.explorer.epsilon.fraction": "exploration_fraction",
    "agent.explorer.epsilon.env_steps": "epsilon_timesteps, epsilon_decay_steps",
    "agent.explorer.sigma": "exploration_noise, expl_noise",
}
_PLAIN = (  # keys of built-in learners that go by one name only
    "alpha, alpha_bounds, bootstrap_steps, cg_damping, dual_clip, ent_coef_bounds, ent_coef_init, "
    "ent_coef_learning_rate, line_search_steps, n_fractions, n_targets, normalize_return, on_high_kl, policy_reduce, "
    "c_bar, compile, policy_step, precision, ratio, return_decay, returns, rho_bar, sequence_length, stop_on_loss, "
    "target_clip, target_entropy, target_reduce, td_clip, train_every_env_steps, v_max, v_min, value_delay, value_loss"
)
LEARNER |= _OFF_POLICY | {f"learner.{name.strip()}": "" for name in _PLAIN.split(",")}
# Key → what it stands for with some learners.
BY_LEARNER = {name: {"learner.ent_coef": "learner.alpha"} for name in ("sac", "tqc", "redq", "droq")}
SAMPLING = {"sampling.type": "mode, name, kind", "sampling.timeout_s": "timeout"}
TRAINING = {
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
DISTRIBUTED = {
    "distributed.backend": "communication, comm_backend",
    "distributed.num_learners": "n_learners, world_size, num_replicas, replicas, num_gpus",
    "distributed.sync_period": "sync_interval, sync_every, local_steps",
}
NETWORK = {
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
COMPONENT = {
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
    "explorer": {
        "type": _TYPE,
        "epsilon": "eps, exploration_rate",
        "sigma": "std, stddev, noise_std, exploration_noise, expl_noise",
    },
    "buffer": {
        "type": _TYPE,
        "train_batch_size": "train_batch",
        "capacity": f"{_OFF_POLICY['agent.buffer.capacity']}, size, max_size, maxlen",
        "alpha": _OFF_POLICY["agent.buffer.alpha"],
        "epsilon": f"{_OFF_POLICY['agent.buffer.epsilon']}, eps",
        "her": "hindsight",
        "memory_map": "mmap, memmap",
        "length": "sequence_length, seq_len, unroll_length",
        "burn_in": "burn_in_steps, burn_in_length",
    },
    "memory": {
        "type": f"{_TYPE}, cell, rnn_type",
        "hidden_size": (
            "hidden_dim, lstm_hidden_size, gru_hidden_size, rnn_hidden_size, units, lstm_cell_size, d_model, embed_dim"
        ),
        "num_layers": "n_layers, n_lstm_layers, lstm_num_layers, layers, depth",
        "num_heads": "n_heads, heads, nhead",
        "slots": "num_slots, n_slots, memory_slots",
        "window": "context_length, memory_length, window_size, context",
    },
    "her": {"strategy": "goal_selection_strategy", "ratio": "her_ratio"},
    "decay": {
        "type": "name, kind, schedule",
        "start": _OFF_POLICY["agent.explorer.epsilon.start"] + ", initial, initial_value, from",
        "end": _OFF_POLICY["agent.explorer.epsilon.end"] + ", final, final_value, to",
        "fraction": "exploration_fraction",
        "env_steps": "epsilon_timesteps, epsilon_decay_steps, decay_steps, steps, timesteps",
    },
    "callback": {"type": f"{_TYPE}, callback"},
    "logger": {"type": _TYPE},
    "optimizer": {
        "type": f"{_TYPE}, optimizer",
        "lr": "learning_rate",
        "eps": "epsilon, adam_eps, adam_epsilon, optimizer_eps",
        "weight_decay": "wd, l2",
        "rho": "sam_rho",
        "base": "base_optimizer, inner",
        "accumulate": (
            "gradient_accumulation_steps, grad_accumulation_steps, accumulation_steps, accumulate_grad_batches, "
            "gradient_accumulation"
        ),
        "agc": "adaptive_gradient_clipping, agc_clip, clip_factor",
    },
    "schedule": {
        "type": "name, kind, schedule",
        "start": "initial, initial_value, from, start_value",
        "end": "final, final_value, to, end_value, min_lr",
        "cycles": "n_cycles, num_cycles, restarts",
        "target_kl": "desired_kl, kl_target",
    },
}

# -- names: kind → canonical → other spellings ---------------------------------------------------------------
NAMES = {
    "learner": {
        "ppo": "ppo_clip, ppo2, proximal_policy_optimization",
        "a2c": "actor_critic, advantage_actor_critic",
        "trpo": "trust_region_policy_optimization",
        "dqn": "deep_q_network, deep_q_learning",
        "c51": "categorical_dqn, distributional_dqn",
        "rainbow": "rainbow_dqn",
        "ddpg": "deep_deterministic_policy_gradient",
        "td3": "twin_delayed_ddpg",
        "sac": "soft_actor_critic, discrete_sac, sac_discrete",
        "droq": "dropq",
    },
    "network": {
        "mlp": "MlpPolicy, MlpValue, MlpCritic, MultiInputPolicy, ActorCriticPolicy, feedforward, dense, fc",
        "nature_cnn": "CnnPolicy, CnnValue, CnnCritic, ActorCriticCnnPolicy, cnn, nature",
        "impala_cnn": "impala, impala_resnet, resnet",
        "minatar_cnn": "minatar",
    },
    "explorer": {
        "sample": "Gaussian, Stochastic, Sampling, Categorical, on_policy, policy",
        "epsilon_greedy": "eps_greedy, e_greedy, egreedy",
        "boltzmann": "softmax, soft_q",
        "gaussian_noise": "NormalActionNoise, GaussianActionNoise, normal_noise",
        "ornstein_uhlenbeck": "OrnsteinUhlenbeckActionNoise, OrnsteinUhlenbeckNoise, ou, ou_noise",
        "parameter_noise": "AdaptiveParamNoise, param_noise",
    },
    "bonus": {
        "rnd": "random_network_distillation",
        "icm": "intrinsic_curiosity, intrinsic_curiosity_module",
        "count": "count_based, simhash, counts",
        "information_gain": "disagreement, info_gain, plan2explore",
    },
    "memory": {
        "lstm": "long_short_term_memory, rnn, recurrent",
        "gru": "gated_recurrent_unit",
        "key_value": "external, external_memory, episodic_memory, kv, neural_dictionary, dnd",
        "gtrxl": "gated_transformer, transformer, transformer_xl, attention",
    },
    "buffer": {
        "rollout": "OnPolicy, trajectory",
        "replay": (
            "OffPolicy, experience_replay, replay_memory, uniform_replay, DictReplay, NStepReplay, uniform, "
            "random_memory"
        ),
        "prioritized": "prioritized_replay, prioritized_experience_replay, prioritised, per",
        "sequence": "sequence_replay, sequential",
    },
    "optimizer": {"sam": "SAMPO, sharpness_aware_minimization"},
    "schedule": {
        "constant": "fixed",
        "linear": "linear_decay, anneal, linear_anneal",
        "cosine": "cosine_annealing, cosine_decay",
        "exponential": "exponential_decay, exp, exp_decay",
        "warm_restarts": "cosine_warm_restarts, cosine_annealing_warm_restarts, sgdr",
        "kl_adaptive": "kl_adaptive_lr, adaptive, adaptive_kl",
        "plateau": "reduce_on_plateau, reduce_lr_on_plateau",
    },
    "callback": {
        "evaluate": "eval, evaluation, evaluator",
        "checkpoint": "model_checkpoint, save, checkpointing, saver",
        "early_stop": "early_stopping, stop_training_on_reward_threshold, stop_training_on_no_model_improvement",
        "progress": "progress_bar",
        "video": "record_video, video_recorder, vec_video_recorder",
        "curriculum": "curriculum_scheduler, curriculum_learning",
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
        "select_entries": "select_observation, partial_observation",
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
# Endings that say the kind once more: PPO_Agent, ReplayBuffer.
ENDINGS: dict[str, tuple[str, ...]] = {
    "learner": ("agent", "learner", "algorithm", "policy"),
    "env": (),
    "wrapper": ("wrapper",),
    "network": ("policy", "value", "network", "net", "encoder", "extractor"),
    "memory": ("memory", "network", "cell", "layer"),
    "explorer": ("explorer", "exploration", "policy"),
    "bonus": ("bonus", "module", "curiosity"),
    "buffer": ("buffer", "memory"),
    "optimizer": ("optimizer",),
    "schedule": ("schedule", "scheduler", "lr"),
    "callback": ("callback",),
    "logger": ("logger", "writer"),
}
# Values of single keys.
VALUES = {
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
