"""Learning something tiny within seconds: settings of every learner, and what trains and scores an agent."""

from __future__ import annotations

from typing import Any

import numpy as np

from uniarena import Agent, Trainer, make_env
from uniarena.registry import BUILT_IN
from uniarena.sampling.evaluation import EvalResult, evaluate_agent

# One set of values for all tasks: what is tested is that a learner learns, not how well it was tuned.
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"n_steps": 64, "batch_size": 128, "n_epochs": 8, "learning_rate": 3e-3, "gamma": 0.9},
    "a2c": {"n_steps": 8, "learning_rate": 3e-3, "gamma": 0.9},
    "impala": {"n_steps": 8, "learning_rate": 3e-3, "gamma": 0.9, "max_grad_norm": 0.5},
    "appo": {"n_steps": 32, "batch_size": 64, "learning_rate": 1e-2, "gamma": 0.9},
    "trpo": {"n_steps": 32, "target_kl": 0.05, "n_epochs": 4, "learning_rate": 3e-3, "gamma": 0.9},
}
LEARNERS = sorted(name for name, path in BUILT_IN["learner"].items() if ".on_policy." in path)

_REPLAYED = {
    "learning_starts": 200,
    "batch_size": 64,
    "train_every_env_steps": 8,
    "updates_per_env_step": 0.25,
    "gamma": 0.9,
}
_VALUES = {**_REPLAYED, "learning_rate": 3e-3, "target_update_updates": 20}
_ATOMS = {"v_min": -0.5, "v_max": 1.5}
_CRITICS = {**_REPLAYED, "learning_rate": 1e-2, "tau": 0.05}
_MANY = {**_CRITICS, "policy_delay": 1}  # their own delay goes with 20 updates for every step
OFF_POLICY: dict[str, dict[str, Any]] = {
    "dqn": _VALUES,
    "c51": {**_VALUES, **_ATOMS},
    "qr_dqn": {**_VALUES, "n_quantiles": 16},
    "iqn": {**_VALUES, "n_fractions": 8, "n_quantiles": 8},
    "rainbow": {**_VALUES, **_ATOMS},
    "ddpg": _CRITICS,
    "td3": _CRITICS,
    "sac": _CRITICS,
    "tqc": _CRITICS,
    "redq": _MANY,
    "droq": _MANY,
}


def learn(
    spec: Any,
    learner: str,
    env_steps: int,
    *,
    policy: dict[str, Any] | None = None,
    parts: dict[str, Any] | None = None,
    wrappers: tuple[Any, ...] = (),
    seed: int = 0,
    **settings: Any,
) -> Agent:
    """An agent trained for `env_steps` in 8 columns of `spec`; `settings` change the learner's."""
    env = make_env(spec, 8, wrappers=wrappers)
    section = {"type": learner, **{**SETTINGS, **OFF_POLICY}[learner], **settings}
    kept = {"buffer": {"capacity": env_steps}} if learner in OFF_POLICY else {}
    agent = Agent.assemble(
        env, section, policy=policy or {"hidden_sizes": [32]}, parts={**kept, **(parts or {})}, seed=seed
    )
    trainer = Trainer(agent, env)
    try:
        trainer.fit(env_steps)
    finally:
        trainer.close()
    assert all(np.isfinite(p.detach().numpy()).all() for p in agent.model.parameters())
    return agent


def score(
    agent: Agent, spec: Any, episodes: int = 20, *, wrappers: tuple[Any, ...] = (), deterministic: bool = True
) -> EvalResult:
    """The returns of `agent` over whole episodes of `spec`."""
    env = make_env(spec, 4, wrappers=wrappers)
    try:
        return evaluate_agent(agent, env, episodes, deterministic=deterministic, seed=1)
    finally:
        env.close()
