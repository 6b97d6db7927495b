"""The whole story in Python, from parts: environment, agent, trainer, and then the agent in use.

The same from one YAML file is `uniarena train FILE`, or `uniarena.train(FILE)`.
Run it:  python examples/python_story.py
"""

from __future__ import annotations

import tempfile
from typing import Any

from uniarena import Agent, Trainer, make_env
from uniarena.trainer.callbacks import Evaluate


class StopWhenGood:
    """A callback is any object with methods `on_<event>(trainer, event)`."""

    def on_validation_epoch(self, trainer: Trainer, event: Any) -> None:
        if event.result.mode == "deterministic" and event.result.return_mean >= 475:
            trainer.request_stop("good enough")


def main(env_steps: int = 60_000) -> float:
    """Train, save, load and use an agent; prints and returns what it earns in one episode."""
    env = make_env("CartPole-v1", num_envs=8, wrappers=["normalize_observation"])
    learner = {"type": "ppo", "n_steps": 64, "batch_size": 256, "learning_rate": 1e-3, "gamma": 0.98}
    agent = Agent.assemble(env, learner=learner, policy={"hidden_sizes": [64, 64]})
    trainer = Trainer(agent, env, callbacks=[Evaluate(every_env_steps=10_000, n_episodes=5), StopWhenGood()])
    counters = trainer.fit(env_steps=env_steps)
    trainer.close()
    print(f"{trainer.stop_reason} after {counters.env_steps:,} steps and {counters.updates} updates")

    with tempfile.TemporaryDirectory() as folder:
        agent = Agent.load(agent.save(f"{folder}/agent"))  # the statistics of the normaliser are inside

    import gymnasium

    world, total, done = gymnasium.make("CartPole-v1"), 0.0, False
    obs, _ = world.reset(seed=1)
    while not done:
        obs, reward, terminated, truncated, _ = world.step(agent.act(obs))
        total, done = total + float(reward), terminated or truncated
    world.close()
    print(f"one episode with the loaded agent: {total:.0f}")
    return total


if __name__ == "__main__":
    main()
