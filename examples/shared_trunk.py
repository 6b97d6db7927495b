"""A network of your own: one trunk, a value head, and an action branch that ends in tanh.

Any `torch.nn.Module` can be the agent's network. It is named by import path, its constructor gets what it
asks for by parameter name (`obs_dim`, `act_dim`, `observation_space`, `action_space`) and every further key
of the section:

    agent:
      policy: {network: "examples.shared_trunk:SharedTrunk", width: 64}

`forward` returns `(value [N, 1], action_parameters [N, act_dim])`: means for a Box (a learned log-std is
added), logits for Discrete. The trunk is optimised once, with the gradients of both heads.

Run it:  python examples/shared_trunk.py
"""

from __future__ import annotations

from torch import Tensor, nn

from uniarena import Agent, Trainer, make_env
from uniarena.trainer.callbacks import Evaluate


class SharedTrunk(nn.Module):
    """obs `[N, obs_dim]` → (value `[N, 1]`, action parameters `[N, act_dim]` in (−scale, scale)).

    Args:
        obs_dim: width of the flat observation.
        act_dim: number of action parameters.
        width: of the hidden layers.
        scale: the tanh of the action branch is multiplied by it; logits of magnitude 1 could never be
            confident.
    """

    def __init__(self, obs_dim: int, act_dim: int, width: int = 64, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.trunk = nn.Sequential(nn.Linear(obs_dim, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.value = nn.Linear(width, 1)
        self.action = nn.Sequential(nn.Linear(width, act_dim), nn.Tanh())

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(obs)
        return self.value(features), self.scale * self.action(features)


def train(env_id: str, scale: float, gamma: float, env_steps: int) -> float:
    """Train PPO with the module; returns the evaluated return."""
    env = make_env(env_id, 8, wrappers=["normalize_observation", "normalize_reward"])
    learner = {"type": "ppo", "n_steps": 128, "batch_size": 256, "learning_rate": 3e-3, "gamma": gamma}
    agent = Agent.assemble(env, learner, policy={"network": SharedTrunk, "scale": scale})
    evaluate = Evaluate(n_episodes=10)
    trainer = Trainer(agent, env, callbacks=[evaluate])
    trainer.fit(env_steps)
    trainer.close()
    return evaluate.results["deterministic"].return_mean


def main(env_steps: int = 24_000) -> dict[str, float]:
    """Train on a Box and on a Discrete task; prints and returns what each earns."""
    found = {
        "Pendulum-v1, Box actions": train("Pendulum-v1", 2.0, 0.9, env_steps),
        "CartPole-v1, Discrete actions": train("CartPole-v1", 3.0, 0.98, env_steps),
    }
    for task, earned in found.items():
        print(f"{task}, {env_steps:,} steps: return {earned:.1f}")
    return found


if __name__ == "__main__":
    main()
