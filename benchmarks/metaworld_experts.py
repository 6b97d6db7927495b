"""Demonstrations by Meta-World's scripted experts (Yu et al. 2019, arXiv:1910.10897), as data to learn from.

    python benchmarks/metaworld_experts.py reach-v3 --episodes 50 --noise 0.1

and then a config such as

    environment: {id: metaworld/reach-v3}
    data: {path: datasets/metaworld/reach-v3.npz}
    learner: {type: bc}

Needs the extra `metaworld`, which has an environment of its own (docs/installing.md). Goals are drawn anew for each
episode; in how many the expert reached its own is printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from uniarena.data import Episode, Recorder, load
from uniarena.data.audit import audit
from uniarena.data.report import write


def expert_of(task: str) -> Any:
    """The scripted policy of a task such as `reach-v3`: `get_action(obs) → action`."""
    from metaworld import policies

    words = "".join(word.capitalize() for word in task.rsplit("-", 1)[0].split("-"))
    name = f"Sawyer{words}{task.rsplit('-', 1)[1].upper()}Policy"
    found = getattr(policies, name, None)
    if found is None:
        raise SystemExit(f"Meta-World has no scripted policy {name} for {task!r}.")
    return found()


def record(task: str, episodes: int, noise: float, seed: int, path: Path) -> tuple[Path, float]:
    """Record episodes of an expert with Gaussian noise on its actions → the file, and the share that succeeded."""
    import metaworld

    gym.register_envs(metaworld)
    env, expert, rng = (
        gym.make("Meta-World/MT1", env_name=task, seed=seed),
        expert_of(task),
        np.random.default_rng(seed),
    )
    space: Any = env.action_space
    origin = {"made_by": "scripted", "kind": "expert", "task": task, "noise": noise, "seed": seed}
    recorder = Recorder(env.observation_space, space, {"id": f"metaworld/{task}"}, origin)
    successes = 0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        seen, actions, rewards, flags, success = [obs], [], [], [], False
        while not flags or not any(flags[-1]):
            chosen = np.asarray(expert.get_action(obs)) + noise * rng.standard_normal(space.shape)
            action = np.clip(chosen, space.low, space.high).astype(space.dtype)
            obs, reward, terminated, truncated, info = env.step(action)
            seen.append(obs), actions.append(action), rewards.append(reward)
            flags.append((terminated, truncated))
            success = success or bool(info.get("success", 0.0))
        ends = np.array(flags, bool)
        recorder.add(
            Episode(np.array(seen), np.array(actions), np.array(rewards), ends[:, 0], ends[:, 1], True)
        )
        successes += success
    env.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    recorder.save(path)
    write(audit(load(path)), path.with_suffix(".md"))
    return path, successes / episodes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", help="such as reach-v3, push-v3, door-open-v3")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--noise", type=float, default=0.1, help="deviation of what is added to each action")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="the file; by default datasets/metaworld/<task>.npz")
    args = parser.parse_args()
    path = args.out or Path("datasets") / "metaworld" / f"{args.task}.npz"
    path, share = record(args.task, args.episodes, args.noise, args.seed, path)
    data = load(path)
    print(
        f"{path}: {data.episodes} episodes, {len(data):,} transitions, return {data.returns.mean():.0f}, "
        f"success in {share:.0%}"
    )


if __name__ == "__main__":
    main()
