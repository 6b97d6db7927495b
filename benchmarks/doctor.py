"""How often the doctor is right: short runs that were made ill on purpose, and healthy ones.

    python benchmarks/doctor.py --output benchmarks/results/doctor.json
    python benchmarks/doctor.py --only ppo-lr --seeds 0

Every arm is trained in a scratch folder, one run after the other, and examined as `uniarena doctor` does. An arm names
the illness it must show, and those that may come with it: an effect is not a false alarm. A healthy arm names none.

- recall: runs made ill whose illness is among the findings, over all runs made ill;
- precision: findings that an arm names, over all findings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

import uniarena
from uniarena import run as runs


class Silent(gymnasium.Env):
    """A walk on a line that pays nothing, unless the far end is reached, which chance does not."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.count = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place, self.count = max(0, self.place + (1 if action else -5)), self.count + 1
        won = self.place >= 50
        return self._obs(), float(won), won, self.count >= 60, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.place / 50, 0.0], np.float32)


class Short(gymnasium.Env):
    """Says that it is over at once: a limit the wrong way round."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return obs, float(action), bool(abs(obs[0]) < 2.0), False, {}


class Clock(gymnasium.Wrapper):
    """One more observation entry, that counts the steps of the whole run."""

    def __init__(self, env: gymnasium.Env | None = None) -> None:
        super().__init__(gymnasium.make("CartPole-v1") if env is None else env)
        low, high = (
            np.append(self.env.observation_space.low, 0),
            np.append(self.env.observation_space.high, np.inf),
        )
        self.observation_space = gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32))
        self.now = 0.0

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return np.append(obs, np.float32(self.now)), info

    def step(self, action: Any) -> Any:
        self.now = 1.002 * self.now + 1.0
        obs, *rest = self.env.step(action)
        return (np.append(obs, np.float32(self.now)), *rest)


class Pennies(gymnasium.Env):
    """Matching pennies against an opponent who answers the more frequent coin: the best policy is random."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.counts, self.left = np.zeros(2), 20
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        guess = (
            int(self.np_random.integers(2)) if self.counts[0] == self.counts[1] else int(self.counts.argmax())
        )
        self.counts[action] += 1
        self.left -= 1
        return np.zeros(1, np.float32), 1.0 if action != guess else -1.0, False, self.left == 0, {}


class Noise(gymnasium.Env):
    """Pays at random, whatever is done."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 20
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        obs = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return obs, float(self.np_random.normal()), False, self.left == 0, {}


class Fickle(gymnasium.Env):
    """Pays for one action, and after every 750 steps for the other."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    now = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 20
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.left, self.now = self.left - 1, self.now + 1
        paid = action == (self.now // 750) % 2
        return np.zeros(1, np.float32), float(paid), False, self.left == 0, {}


class Arm(NamedTuple):
    """A configuration, the illness it must show (empty: none), and others that may come with it."""

    name: str
    config: dict[str, Any]
    illness: str = ""
    also: tuple[str, ...] = ()


def _config(env: Any, learner: dict[str, Any], steps: int, **more: Any) -> dict[str, Any]:
    section = env if isinstance(env, dict) else {"id": env}
    return {
        "experiment": {"loggers": ["jsonl"]},
        "environment": section,
        "learner": learner,
        "training": {"total_timesteps": steps, "n_eval_episodes": 5, "eval_every_env_steps": steps // 5},
        **more,
    }


def _ppo(**fields: Any) -> dict[str, Any]:
    known = {"n_steps": 128, "n_epochs": 10, "batch_size": 128, "learning_rate": 1e-3, "gamma": 0.98}
    return {"type": "ppo", **known, **fields}


def _dqn(**fields: Any) -> dict[str, Any]:
    known = {
        "learning_rate": 1e-3,
        "learning_starts": 500,
        "train_every_env_steps": 4,
        "updates_per_env_step": 0.5,
    }
    return {"type": "dqn", "batch_size": 64, "target_update_updates": 200, **known, **fields}


CARTPOLE = {"id": "CartPole-v1", "num_envs": 8}
PENDULUM = {"id": "Pendulum-v1", "num_envs": 8, "wrappers": ["normalize_reward"]}
# Of a policy that was hardly trained: its mode may be much better or worse than its samples.
WEAK = (
    *("no_progress", "stuck_low", "value_explains_nothing"),
    *("evaluation_far_below_training", "evaluation_far_above_training"),
)
DROWNED = (
    "dead_gradients",
    "updates_too_timid",
    *WEAK,
)  # the policy's gradient beside that of huge or tiny values
WILD = (
    "rise_then_collapse",
    "oscillation",
    "entropy_collapse",
    "dead_gradients",
    "exploding_gradients",
    *WEAK,
)
EARLY = 20_000

ARMS = (
    # -- healthy ---------------------------------------------------------------------------------------------------
    Arm("ppo-cartpole", _config(CARTPOLE, _ppo(), EARLY)),
    Arm("ppo-cartpole-long", _config(CARTPOLE, _ppo(learning_rate=3e-4), 40_000)),
    Arm("ppo-pendulum", _config(PENDULUM, _ppo(gamma=0.9, n_epochs=20), 40_000)),
    Arm("a2c-cartpole", _config(CARTPOLE, {"type": "a2c", "learning_rate": 7e-4}, 40_000)),
    Arm("ppo-acrobot", _config({"id": "Acrobot-v1", "num_envs": 8}, _ppo(gamma=0.99), 40_000)),
    Arm("dqn-cartpole", _config("CartPole-v1", _dqn(), 12_000)),
    Arm(
        "sac-pendulum",
        _config(
            "Pendulum-v1",
            {"type": "sac", "learning_rate": 1e-3, "gamma": 0.9},
            8_000,
            agent={"policy": {"hidden_sizes": [64, 64]}},
        ),
    ),
    # -- ill -------------------------------------------------------------------------------------------------------
    Arm("ppo-lr-high", _config(CARTPOLE, _ppo(learning_rate=0.03), EARLY), "kl_too_high", WILD),
    Arm(
        "ppo-gsde",
        _config(PENDULUM, _ppo(learning_rate=0.03), EARLY, agent={"policy": {"gsde": True}}),
        "kl_too_high",
        ("saturated_actions", "exploration_never_ends", "not_a_number", *WILD),
    ),
    Arm("ppo-lr-low", _config(CARTPOLE, _ppo(learning_rate=1e-7), EARLY), "updates_too_timid", WEAK),
    Arm("dqn-lr-low", _config("CartPole-v1", _dqn(learning_rate=1e-8), 12_000), "updates_too_timid", WEAK),
    Arm(
        "ppo-unclipped",
        _config(CARTPOLE, _ppo(clip="none", n_epochs=30, learning_rate=3e-3, max_grad_norm=None), EARLY),
        "kl_too_high",
        WILD,
    ),
    Arm("ppo-silent", _config({"id": Silent, "num_envs": 8}, _ppo(), EARLY), "stuck_low", WEAK),
    Arm("ppo-short", _config({"id": Short, "num_envs": 8}, _ppo(), 20_000), "episodes_of_length_one", WEAK),
    Arm(
        "ppo-rnd",
        _config(CARTPOLE, _ppo(), EARLY, agent={"intrinsic": [{"type": "rnd", "reward_scale": 1000.0}]}),
        "intrinsic_reward_dominates",
        ("reward_scale_off", "kl_too_high", *WILD),
    ),
    Arm(
        "dqn-epsilon",
        _config("CartPole-v1", _dqn(), 12_000, agent={"explorer": {"epsilon": 0.9}}),
        "exploration_never_ends",
        (*WEAK, "evaluation_far_above_training"),
    ),
    Arm("ppo-entropy", _config(CARTPOLE, _ppo(ent_coef=2.0), EARLY), "exploration_never_ends", WEAK),
    Arm(
        "ppo-reward-large",
        _config({**CARTPOLE, "wrappers": [{"type": "scale_reward", "scale": 1e4}]}, _ppo(), EARLY),
        "reward_scale_off",
        DROWNED,
    ),
    Arm(
        "ppo-reward-small",
        _config({**CARTPOLE, "wrappers": [{"type": "scale_reward", "scale": 1e-5}]}, _ppo(), EARLY),
        "reward_scale_off",
        DROWNED,
    ),
    Arm(
        "ppo-clock",
        _config({"id": Clock, "num_envs": 8, "wrappers": ["normalize_observation"]}, _ppo(), EARLY),
        "normalizer_drift",
        WILD,
    ),
    Arm(
        "ppo-pennies",
        _config({"id": Pennies, "num_envs": 8}, _ppo(learning_rate=1e-4), 20_000),
        "evaluation_far_below_training",
        (*WEAK, "updates_too_timid"),
    ),
    Arm(
        "sac-temperature",
        _config(
            "CartPole-v1",
            {
                "type": "sac",
                "learning_rate": 3e-3,
                "alpha_learning_rate": 0.03,
                "target_entropy": 0.7,
                "learning_starts": 200,
                "updates_per_env_step": 0.5,
            },
            8_000,
            agent={"policy": {"hidden_sizes": [32]}},
        ),
        "temperature_runs_away",
        (
            "exploration_never_ends",
            "q_overestimation",
            "reward_scale_off",
            "exploding_gradients",
            "evaluation_far_above_training",
            *WEAK,
        ),
    ),
    Arm(
        "dqn-overestimates",
        _config(
            "CartPole-v1",
            _dqn(target_update_updates=1, learning_rate=0.02, updates_per_env_step=1.0, gamma=0.999),
            12_000,
        ),
        "q_overestimation",
        ("reward_scale_off", *WILD),
    ),
    Arm(
        "td3-saturates",
        _config(
            {"id": "Pendulum-v1", "wrappers": [{"type": "scale_reward", "scale": 1e3}]},
            {"type": "td3", "learning_rate": 0.03, "learning_starts": 500},
            9_000,
            agent={"policy": {"hidden_sizes": [32, 32]}},
        ),
        "saturated_actions",
        ("reward_scale_off", "exploding_gradients", "q_overestimation", *WILD),
    ),
    Arm("ppo-noise", _config({"id": Noise, "num_envs": 8}, _ppo(), EARLY), "no_progress", WEAK),
    Arm("ppo-fickle", _config({"id": Fickle, "num_envs": 8}, _ppo(), 48_000), "oscillation", WILD),
    Arm(
        "ppo-rising-rate",
        _config(CARTPOLE, _ppo(learning_rate={"type": "linear", "start": 1e-3, "end": 0.2}), EARLY),
        "rise_then_collapse",
        ("kl_too_high", *WILD),
    ),
    Arm(
        "ppo-dead",
        _config(
            CARTPOLE,
            _ppo(learning_rate=1.0, max_grad_norm=None),
            EARLY,
            agent={"policy": {"activation": "relu"}},
        ),
        "dead_gradients",
        ("kl_too_high", "updates_too_timid", *WILD),
    ),
    Arm(
        "dqn-explodes",
        _config(
            {"id": "CartPole-v1", "wrappers": [{"type": "scale_reward", "scale": 100.0}]},
            _dqn(td_clip=None, max_grad_norm=None, learning_rate=0.01, target_update_updates=1),
            12_000,
        ),
        "exploding_gradients",
        ("q_overestimation", "reward_scale_off", *WILD),
    ),
    Arm(
        "ppo-entropy-collapses",
        _config(CARTPOLE, _ppo(learning_rate=0.02, ent_coef=-0.3), EARLY),
        "entropy_collapse",
        ("kl_too_high", "updates_too_timid", *WILD),
    ),
)


def train(arm: Arm, seed: int, folder: Path) -> dict[str, Any]:
    """One run → what was found, and whether that was right."""
    started = time.process_time()
    if not (folder / "metrics.jsonl").exists():
        with contextlib.suppress(ArithmeticError):  # some illnesses end in numbers that are none
            config = {**arm.config, "experiment": {**arm.config["experiment"], "seed": seed}}
            uniarena.train(config, run_dir=folder, quiet=True)
    found = [finding.illness for finding in runs.doctor(folder)[0]]
    named = {arm.illness, *arm.also} - {""}
    return {
        "arm": arm.name,
        "seed": seed,
        "illness": arm.illness,
        "found": found,
        "hit": arm.illness in found,
        "false": [illness for illness in found if illness not in named],
        "finished": (folder / "result.json").exists(),
        "cpu_s": round(time.process_time() - started, 1),
    }


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Precision and recall over all runs."""
    ill = [each for each in results if each["illness"]]
    findings = sum(len(each["found"]) for each in results)
    false = sum(len(each["false"]) for each in results)
    healthy = [each for each in results if not each["illness"]]
    return {
        "runs": len(results),
        "ill": len(ill),
        "recall": sum(each["hit"] for each in ill) / max(1, len(ill)),
        "precision": (findings - false) / max(1, findings),
        "findings": findings,
        "healthy": len(healthy),
        "healthy_undisturbed": sum(not each["found"] for each in healthy),
    }


def measured(arms: list[Arm], seeds: list[int], keep: Path | None) -> Iterator[dict[str, Any]]:
    """Every arm with every seed, one after the other."""
    with tempfile.TemporaryDirectory() as scratch:
        for seed in seeds:
            for arm in arms:
                yield train(arm, seed, (keep or Path(scratch)) / f"{arm.name}-{seed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--only", default="", help="arms whose name begins so")
    parser.add_argument("--keep", type=Path, help="runs go here, and those that are there are only examined")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    results: list[dict[str, Any]] = []
    arms = [arm for arm in ARMS if arm.name.startswith(given.only)]
    for result in measured(arms, given.seeds, given.keep):
        results.append(result)
        mark = "ok " if (result["hit"] or not result["illness"]) and not result["false"] else "BAD"
        told = result["illness"] or "(healthy)"
        print(f"{mark} {result['arm']:22} {result['seed']} {told:30} {result['found']}", flush=True)
        if given.output:
            text = json.dumps({"summary": summary(results), "results": results}, indent=1)
            given.output.write_text(text + "\n", encoding="utf-8")
    print(json.dumps(summary(results)))


if __name__ == "__main__":
    main()
