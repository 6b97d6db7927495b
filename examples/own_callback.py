"""A callback of your own: it looks at every gradient step and changes it.

    callbacks: [{type: "examples.own_callback:Gentle", limit: 1e-3, halve_at: 100}]

A callback is any object with methods `on_<event>(trainer, event)`; the events are listed in
`uniarena.trainer.events`. `on_learn_step` comes between backward and step: write into `event.gradients` to change the
step, call `event.optimizer.scale(factor)` to change the learning rate. With `state_dict` and `load_state_dict` it
resumes exactly. Run it:  python examples/own_callback.py
"""

from __future__ import annotations

from typing import Any

from uniarena import Agent, Trainer, make_env
from uniarena.config import config
from uniarena.trainer.events import LearnStep, UpdateEnd


@config
class GentleConfig:
    limit: float = 1e-3  # largest magnitude of any number in a gradient
    halve_at: int = 1  # the gradient step from which on the learning rate is half of what its schedule says


class Gentle:
    """Clips every gradient by value and, from some step on, halves the learning rate."""

    Config = GentleConfig

    def __init__(self, cfg: GentleConfig) -> None:
        self.cfg = cfg
        self.steps = self.clipped = 0

    def on_learn_step(self, trainer: Trainer, event: LearnStep) -> None:
        self.steps += 1
        for gradient in event.gradients.values():
            self.clipped += int((gradient.abs() > self.cfg.limit).any())
            gradient.clamp_(-self.cfg.limit, self.cfg.limit)
        if self.steps == self.cfg.halve_at:
            event.optimizer.scale(0.5)

    def on_update_end(self, trainer: Trainer, event: UpdateEnd) -> None:
        trainer.log("clipped_gradients", self.clipped)  # its mean over the iteration reaches every logger

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "clipped": self.clipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.clipped = state["steps"], state["clipped"]


def main(env_steps: int = 4_000) -> list[float]:
    """Train shortly; prints and returns the learning rates before and after the callback halved it."""
    env = make_env("CartPole-v1", num_envs=8)
    agent = Agent.assemble(env, {"type": "ppo", "n_steps": 64, "batch_size": 128, "learning_rate": 1e-3})
    before = agent.learner.optimizer.lr
    gentle = Gentle(GentleConfig(limit=1e-3, halve_at=10))
    trainer = Trainer(agent, env, callbacks=[gentle])
    trainer.fit(env_steps)
    trainer.close()
    after = agent.learner.optimizer.lr
    print(f"{gentle.steps} gradient steps, {gentle.clipped} gradients clipped to ±1e-3; "
          f"learning rate {before:g} → {after:g}")  # fmt: skip
    return [before, after]


if __name__ == "__main__":
    main()
