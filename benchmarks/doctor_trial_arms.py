"""The arms of the doctor's trial, written down before any was run; see doctor_trial.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

STALL = frozenset({"no_progress", "stuck_low", "value_explains_nothing", "updates_too_timid"})
"""What a run that learns nothing may be told besides."""
WILD = frozenset(
    {
        "kl_too_high",
        "rise_then_collapse",
        "oscillation",
        "entropy_collapse",
        "dead_gradients",
        "exploding_gradients",
    }
)
"""What a run whose steps are too large may be told besides."""
OFF = frozenset(
    {"q_overestimation", "exploding_gradients", "reward_scale_off", "saturated_actions", "dead_gradients"}
)
"""What a run whose critics diverge may be told besides."""


@dataclass(frozen=True)
class Arm:
    """One run: what is merged, and what the doctor ought to say of it."""

    name: str
    base: str | dict[str, Any]
    steps: int
    changes: tuple[str, ...] = ()
    expected: str | None = None
    accepted: frozenset[str] = frozenset()
    seed: int = 11


def ppo(env: str, columns: int = 8, n_steps: int = 128, **learner: Any) -> dict[str, Any]:
    """What people begin with: 8 columns, 128 rows, minibatches of 256, 4 epochs, the rest as it is."""
    fields = {"type": "ppo", "n_steps": n_steps, "batch_size": 256, "n_epochs": 4, **learner}
    return {"environment": {"id": env, "num_envs": columns}, "learner": fields}


def off(env: str, kind: str, **learner: Any) -> dict[str, Any]:
    """An off-policy learner with small networks."""
    return {
        "environment": {"id": env},
        "agent": {"policy": {"hidden_sizes": [64, 64]}, "buffer": {"capacity": 50_000}},
        "learner": {"type": kind, **learner},
    }


DQN = {"batch_size": 64, "train_every_env_steps": 32, "updates_per_env_step": 0.25, "learning_starts": 500}
W = "doctor_trial_worlds"
CART, PEND, ACRO = "CartPole-v1", "Pendulum-v1", "Acrobot-v1"
NORMAL = "environment.wrappers=[normalize_observation, normalize_reward]"

HEALTHY = [
    Arm("h-ppo-cartpole-plain", ppo(CART, learning_rate=1e-3, n_epochs=10), 50_000),
    Arm("h-ppo-cartpole-recipe", "ppo/cartpole", 40_000),
    Arm(
        "h-ppo-cartpole-pipelined",
        ppo(CART, learning_rate=1e-3, n_epochs=10),
        50_000,
        ("sampling=pipelined",),
    ),
    Arm("h-trpo-cartpole", ppo(CART, type="trpo", n_steps=256), 50_000),
    Arm("h-impala-cartpole", "impala/cartpole", 80_000),
    Arm("h-a2c-cartpole", "a2c/cartpole", 80_000),
    Arm("h-dqn-cartpole-recipe", "dqn/cartpole", 20_000),
    Arm(
        "h-qr-dqn-cartpole",
        off(CART, "qr_dqn", **DQN, learning_rate=1e-3, target_update_env_steps=500),
        15_000,
    ),
    Arm("h-sac-discrete-cartpole", off(CART, "sac", learning_rate=1e-3, batch_size=64), 5_000),
    Arm("h-ppo-acrobot", ppo(ACRO, 16, learning_rate=1e-3), 80_000, (NORMAL,)),
    Arm("h-dqn-acrobot", "dqn/acrobot", 15_000, ("agent.policy.hidden_sizes=[64, 64]",)),
    Arm("h-ppo-mountaincar-shaped", ppo(f"{W}:shaped_mountain_car", learning_rate=1e-3), 80_000, (NORMAL,)),
    Arm("h-ppo-pendulum", "ppo/pendulum", 50_000),
    Arm("h-sac-pendulum", "sac/pendulum", 5_000),
    Arm("h-td3-pendulum", "td3/pendulum", 6_000),
    Arm("h-tqc-pendulum", "tqc/pendulum", 4_000),
    Arm("h-ppo-mountaincar-continuous", "ppo/mountaincar-continuous", 60_000),
    Arm("h-ppo-lunarlander", ppo("LunarLander-v3", gamma=0.999, gae_lambda=0.98, learning_rate=1e-3), 80_000),
    Arm("h-ppo-halfcheetah", ppo("HalfCheetah-v5", 4, 256, batch_size=64, n_epochs=10), 40_000, (NORMAL,)),
    Arm("h-ppo-minatar", ppo("MinAtar/Breakout-v1", learning_rate=1e-3, ent_coef=0.01), 50_000),
    Arm("h-lstm-hidden-velocity", "ppo/velocity-hidden-cartpole", 40_000, ("agent.memory.hidden_size=32",)),
    Arm("h-ppo-chain-counts", "examples/long_chain.yaml", 60_000),
    Arm("h-ppo-neighbours", "examples/neighbours.yaml", 20_000),
    Arm("h-iql-pendulum", "iql/pendulum-mixed", 2_000),
]

ILL = [
    Arm("i-ppo-lr-1e-1", ppo(CART, learning_rate=0.1, n_epochs=10), 40_000, (), "kl_too_high", STALL | WILD),
    Arm(
        "i-ppo-pendulum-lr-3e-2",
        ppo(PEND, learning_rate=3e-2, n_epochs=10, gamma=0.9),
        40_000,
        ("environment.wrappers=[normalize_reward]",),
        "kl_too_high",
        STALL | WILD | {"saturated_actions"},
    ),
    Arm(
        "i-ppo-clip-0.9-epochs-50",
        ppo(CART, learning_rate=1e-3, n_epochs=50, clip_range=0.9),
        25_000,
        (),
        "kl_too_high",
        WILD | {"value_overfitting", "value_explains_nothing", "no_progress"},
    ),
    Arm(
        "i-ppo-entropy-0.5",
        ppo(CART, ent_coef=0.5),
        50_000,
        (),
        "exploration_never_ends",
        STALL | {"evaluation_far_above_training"},
    ),
    Arm(
        "i-ppo-entropy-0.5-pendulum",
        ppo(PEND, ent_coef=0.5, gamma=0.9, learning_rate=1e-3),
        60_000,
        ("environment.wrappers=[normalize_reward]",),
        "exploration_never_ends",
        STALL | {"evaluation_far_above_training", "saturated_actions"},
    ),
    Arm(
        "i-dqn-epsilon-0.5",
        off(CART, "dqn", **DQN, learning_rate=1e-3, target_update_env_steps=500),
        25_000,
        ("agent.explorer.epsilon=0.5",),
        "exploration_never_ends",
        frozenset({"evaluation_far_above_training", "no_progress", "stuck_low", "oscillation"}),
    ),
    Arm(
        "i-dqn-epsilon-0.15",
        off(CART, "dqn", **DQN, learning_rate=1e-3, target_update_env_steps=500),
        30_000,
        ("agent.explorer.epsilon=0.15",),
        "evaluation_far_above_training",
        frozenset({"exploration_never_ends", "no_progress", "oscillation"}),
        12,
    ),
    Arm(
        "i-dqn-never-starts",
        off(CART, "dqn", **{**DQN, "learning_starts": 1_000_000}),
        15_000,
        (),
        "no_progress",
        STALL | {"exploration_never_ends"},
    ),
    Arm(
        "i-td3-noise-1",
        off(PEND, "td3", learning_starts=500),
        4_000,
        ("agent.explorer={type: gaussian_noise, sigma: 1.5}",),
        "exploration_never_ends",
        frozenset({"evaluation_far_above_training", "no_progress", "saturated_actions"}),
    ),
    Arm(
        "i-ppo-reward-1e5",
        ppo(CART, learning_rate=3e-4, n_epochs=10),
        40_000,
        ("environment.wrappers=[{type: scale_reward, scale: 100000}]",),
        "reward_scale_off",
        STALL | {"dead_gradients", "evaluation_far_above_training", "exploding_gradients"},
    ),
    Arm(
        "i-a2c-reward-1e-4",
        "a2c/cartpole",
        60_000,
        ("environment.wrappers=[{type: scale_reward, scale: 0.0001}]",),
        "reward_scale_off",
        STALL | {"exploration_never_ends", "evaluation_far_above_training"},
    ),
    Arm(
        "i-sac-reward-1e3",
        "sac/pendulum",
        4_000,
        ("environment.wrappers=[{type: scale_reward, scale: 1000}]",),
        "reward_scale_off",
        STALL | OFF | {"temperature_runs_away", "entropy_collapse"},
    ),
    Arm(
        "i-ppo-observations-large",
        ppo(f"{W}:BigNumbers", gamma=0.9, learning_rate=1e-3),
        50_000,
        ("environment.wrappers=[normalize_reward]",),
        "dead_gradients",
        STALL | WILD | {"saturated_actions"},
    ),
    Arm(
        "i-ppo-acrobot-gamma-0.5",
        ppo(ACRO, gamma=0.5),
        60_000,
        (),
        "stuck_low",
        STALL | {"exploration_never_ends", "value_overfitting"},
    ),
    Arm(
        "i-ppo-mountaincar-sparse",
        ppo("MountainCar-v0"),
        60_000,
        (),
        "stuck_low",
        STALL | {"value_overfitting", "entropy_collapse"},
    ),
    Arm(
        "i-ppo-chain-no-bonus",
        "examples/long_chain.yaml",
        60_000,
        ("agent.intrinsic=null",),
        "stuck_low",
        STALL | {"entropy_collapse"},
    ),
    Arm(
        "i-dqn-no-target",
        off(CART, "dqn", **DQN, learning_rate=1e-2, target_update_updates=1),
        20_000,
        ("learner.td_clip=null", "learner.max_grad_norm=null"),
        "q_overestimation",
        STALL | WILD | OFF,
    ),
    Arm(
        "i-ddpg-no-target",
        off(PEND, "ddpg", learning_rate=3e-2, tau=1.0, gamma=0.999, learning_starts=500),
        4_000,
        (),
        "q_overestimation",
        STALL | WILD | OFF,
    ),
    Arm(
        "i-dqn-sgd-explodes",
        off(CART, "dqn", **DQN, learning_rate=3e-2, target_update_updates=8),
        15_000,
        (
            "learner.td_clip=null",
            "learner.max_grad_norm=null",
            "learner.optimizer={type: sgd, momentum: 0.9}",
        ),
        "exploding_gradients",
        STALL | WILD | OFF | {"not_a_number"},
    ),
    Arm(
        "i-td3-torque-bounds",
        off(f"{W}:NarrowTorque", "td3", learning_starts=500),
        4_000,
        (),
        "saturated_actions",
        STALL | {"dead_gradients", "exploration_never_ends"},
    ),
    Arm(
        "i-ppo-action-units",
        ppo(f"{W}:TinyUnits", gamma=0.9, learning_rate=1e-3),
        50_000,
        ("environment.wrappers=[normalize_reward]",),
        "saturated_actions",
        STALL | {"exploration_never_ends", "evaluation_far_above_training"},
    ),
    Arm(
        "i-ppo-one-level",
        ppo(f"{W}:OneLevel", 1, 512, learning_rate=3e-3),
        40_000,
        (),
        "evaluation_far_below_training",
        frozenset({"oscillation"}),
    ),
    Arm(
        "i-ppo-aliased",
        ppo(f"{W}:Aliased", learning_rate=1e-3, ent_coef=0.01),
        40_000,
        (),
        "evaluation_far_below_training",
        STALL | {"exploration_never_ends", "oscillation"},
    ),
    Arm(
        "i-ppo-width-1",
        ppo(PEND, gamma=0.9, learning_rate=1e-3, n_epochs=10),
        50_000,
        ("environment.wrappers=[normalize_reward]", "agent.policy.hidden_sizes=[1]"),
        "no_progress",
        STALL | {"dead_gradients", "exploration_never_ends"},
    ),
    Arm(
        "i-ppo-weight-decay-100",
        ppo(CART, learning_rate=1e-3),
        50_000,
        ("learner.optimizer={type: adamw, weight_decay: 100}",),
        "no_progress",
        STALL | {"dead_gradients", "exploration_never_ends", "oscillation"},
    ),
    Arm(
        "i-ppo-rnd-100",
        ppo(ACRO),
        50_000,
        ("agent.intrinsic={type: rnd, reward_scale: 100}",),
        "intrinsic_reward_dominates",
        STALL | {"reward_scale_off", "exploration_never_ends", "dead_gradients"},
    ),
    Arm(
        "i-a2c-ends-at-once",
        ppo(f"{W}:EndsAtOnce", type="a2c", n_steps=16, batch_size=None, n_epochs=1),
        15_000,
        (),
        "episodes_of_length_one",
        STALL | {"entropy_collapse"},
    ),
    Arm("i-ppo-nan-reward", ppo(f"{W}:NanReward", learning_rate=1e-3), 30_000, (), "not_a_number", STALL),
    Arm(
        "i-a2c-lr-1e-7",
        "a2c/cartpole",
        60_000,
        ("learner.learning_rate=1e-7",),
        "updates_too_timid",
        STALL | {"exploration_never_ends", "evaluation_far_above_training"},
    ),
    Arm(
        "i-sac-lr-1e-7",
        "sac/pendulum",
        4_000,
        ("learner.learning_rate=1e-7",),
        "updates_too_timid",
        STALL | {"exploration_never_ends", "evaluation_far_above_training"},
    ),
    Arm(
        "i-sac-target-entropy-sign",
        "sac/pendulum",
        5_000,
        ("learner.target_entropy=1.0",),
        "temperature_runs_away",
        STALL
        | {
            "exploration_never_ends",
            "evaluation_far_above_training",
            "exploding_gradients",
            "reward_scale_off",
        },
    ),
    Arm(
        "i-ppo-odometer",
        ppo(f"{W}:Odometer", learning_rate=1e-3),
        60_000,
        ("environment.wrappers=[{type: normalize_observation, statistics: ema}]",),
        "normalizer_drift",
        STALL | {"rise_then_collapse", "oscillation", "evaluation_far_below_training"},
    ),
    Arm(
        "i-ppo-restarts",
        ppo(CART, learning_rate={"type": "warm_restarts", "start": 3e-2, "end": 0}, n_epochs=10),
        60_000,
        (),
        "oscillation",
        STALL | WILD,
    ),
    Arm(
        "i-ppo-sensor-fails",
        ppo(f"{W}:SensorFails", learning_rate=1e-3, n_epochs=10),
        60_000,
        (),
        "rise_then_collapse",
        STALL | {"dead_gradients", "entropy_collapse", "value_overfitting", "evaluation_far_above_training"},
    ),
    Arm(
        "i-ppo-entropy-sign",
        ppo(ACRO, ent_coef=-0.1, learning_rate=1e-3),
        40_000,
        (),
        "entropy_collapse",
        STALL | {"kl_too_high", "dead_gradients"},
    ),
    Arm(
        "i-ppo-jackpot",
        ppo(f"{W}:Jackpot", learning_rate=3e-3, n_epochs=10),
        50_000,
        (),
        "value_overfitting",
        STALL | {"oscillation", "kl_too_high", "exploding_gradients"},
    ),
    Arm(
        "i-ppo-no-critic",
        ppo(PEND, vf_coef=0, gamma=0.99),
        40_000,
        ("environment.wrappers=[normalize_reward]",),
        "value_explains_nothing",
        STALL | {"exploration_never_ends"},
    ),
]

SECOND = [
    Arm(
        "h2-a2c-acrobot",
        ppo(ACRO, 16, 16, type="a2c", batch_size=None, n_epochs=1),
        80_000,
        (NORMAL,),
        seed=21,
    ),
    Arm(
        "h2-dqn-double-dueling",
        off(CART, "dqn", **DQN, learning_rate=1e-3, target_update_env_steps=500, double=True, dueling=True),
        15_000,
        seed=21,
    ),
    Arm(
        "h2-ppo-pendulum-beta",
        ppo(PEND, gamma=0.9, learning_rate=1e-3, n_epochs=10),
        50_000,
        ("environment.wrappers=[normalize_reward]", "agent.policy.distribution=beta"),
        seed=21,
    ),
    Arm("h2-appo-cartpole", "appo/cartpole", 60_000, seed=21),
    Arm("h2-ppo-lunarlander-continuous", "ppo/lunarlander-continuous", 50_000, seed=21),
    Arm("h2-trpo-acrobot", ppo(ACRO, 16, type="trpo"), 60_000, (NORMAL,), seed=21),
    Arm(
        "i2-ppo-acrobot-lr-5e-2",
        ppo(ACRO, 16, learning_rate=5e-2, n_epochs=10),
        50_000,
        (NORMAL,),
        "kl_too_high",
        STALL | WILD,
        21,
    ),
    Arm(
        "i2-dqn-boltzmann-hot",
        off(CART, "dqn", **DQN, learning_rate=1e-3, target_update_env_steps=500),
        15_000,
        ("agent.explorer={type: boltzmann, temperature: 100}",),
        "exploration_never_ends",
        STALL | {"evaluation_far_above_training"},
        21,
    ),
    Arm(
        "i2-dqn-reward-1e-5",
        off(CART, "dqn", **DQN, learning_rate=1e-3, target_update_env_steps=500),
        15_000,
        ("environment.wrappers=[{type: scale_reward, scale: 0.00001}]",),
        "reward_scale_off",
        STALL | {"evaluation_far_below_training", "evaluation_far_above_training", "dead_gradients"},
        21,
    ),
    Arm(
        "i2-ppo-icm-50",
        ppo(CART),
        40_000,
        ("agent.intrinsic={type: icm, reward_scale: 50}",),
        "intrinsic_reward_dominates",
        STALL | {"reward_scale_off", "exploration_never_ends", "dead_gradients", "oscillation"},
        21,
    ),
    Arm(
        "i2-sac-lr-3e-1",
        off(PEND, "sac", learning_rate=0.3, learning_starts=500, batch_size=64),
        4_000,
        (),
        "exploding_gradients",
        STALL | WILD | OFF | {"temperature_runs_away", "not_a_number"},
        21,
    ),
    Arm(
        "i2-ppo-relu-dies",
        ppo(PEND, gamma=0.9, learning_rate=0.1),
        40_000,
        ("environment.wrappers=[normalize_reward]", "agent.policy.activation=relu"),
        "dead_gradients",
        STALL | WILD | {"saturated_actions"},
        21,
    ),
    Arm(
        "i2-ppo-pendulum-lr-1e-6",
        ppo(PEND, gamma=0.9, learning_rate=1e-6),
        40_000,
        ("environment.wrappers=[normalize_reward]",),
        "updates_too_timid",
        STALL | {"exploration_never_ends", "evaluation_far_above_training"},
        21,
    ),
    Arm(
        "i2-dqn-sensor-fails",
        {
            **off(f"{W}:SensorFails", "dqn", **DQN, learning_rate=1e-3, target_update_env_steps=500),
            "environment": {"id": f"{W}:SensorFails", "kwargs": {"after": 18_000}},
        },
        30_000,
        (),
        "rise_then_collapse",
        STALL | OFF | {"evaluation_far_above_training", "oscillation"},
        21,
    ),
]
"""Written before the rules were read, run only after they were mended."""
