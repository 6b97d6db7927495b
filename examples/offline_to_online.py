"""Learn from what somebody else did, then go on in the environment: two stages of one run.

    python examples/offline_to_online.py

A controller written by hand swings a pendulum up, and does something random in most of its steps. From its episodes
alone the agent does not learn to do as well; with ten episodes of its own beside them it does better.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import gymnasium
import numpy as np

import uniarena
from uniarena.data import Episode, Recorder
from uniarena.data import load as load_data

RANDOM = 0.7
"""Chance of a random torque at each step."""


def torque(obs: np.ndarray) -> float:
    """Pump energy until there is enough of it, and hold the pendulum where it stands upright."""
    cos, sin, speed = map(float, obs)
    if cos > 0.8:
        return float(np.clip(-8.0 * sin - 2.0 * speed, -2.0, 2.0))
    energy = speed**2 / 6.0 + 5.0 * (cos - 1.0)  # 0 where it is just enough to stand upright
    return -2.0 * float(np.sign(energy) * np.sign(speed or 1.0))


def write(path: Path, episodes: int = 40) -> Path:
    """What the controller does, as a recording."""
    env, rng = gymnasium.make("Pendulum-v1"), np.random.default_rng(0)
    made = {"made_by": "a controller written by hand", "random": RANDOM}
    recorder = Recorder(env.observation_space, env.action_space, {"id": "Pendulum-v1"}, made)
    for seed in range(episodes):
        obs, actions, rewards, over = [env.reset(seed=seed)[0]], [], [], False
        while not over:
            chosen = rng.uniform(-2.0, 2.0) if rng.random() < RANDOM else torque(obs[-1])
            actions.append(np.array([chosen], np.float32))
            after, reward, _, over, _ = env.step(actions[-1])
            obs.append(after)
            rewards.append(float(reward))
        truncated = np.arange(len(rewards)) == len(rewards) - 1
        never = np.zeros(len(rewards), bool)
        recorder.add(Episode(np.stack(obs), np.stack(actions), np.array(rewards), never, truncated, True))
    env.close()
    return recorder.save(path)


def main(updates: int = 1_500, env_steps: int = 2_000, episodes: int = 20) -> dict[str, float]:
    """Mean returns of the data, of the agent that learned from it, and of that agent after some steps of its own."""
    with tempfile.TemporaryDirectory() as folder:
        data = write(Path(folder) / "pendulum.npz")
        changes = [
            f"stages.offline.data.path={data}",
            f"stages.offline.training.total_updates={updates}",
            f"stages.online.training.total_timesteps={env_steps}",
            f"training.n_eval_episodes={episodes}",
        ]
        story, run = Path(__file__).with_suffix(".yaml"), Path(folder) / "run"
        result = uniarena.train(story, changes, run_dir=run, quiet=True)
        returns = {"data": float(load_data(data).returns.mean())}
        for stage in result.stages:
            assert stage.eval is not None
            returns[stage.run.name.partition("-")[2]] = stage.eval.return_mean
    for name, value in returns.items():
        print(f"{name}: mean return {value:.0f}")
    return returns


if __name__ == "__main__":
    main()
