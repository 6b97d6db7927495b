"""A learner of your own in one file: REINFORCE. In YAML it is named by its import path:

    learner: {type: "examples.own_learner:Reinforce", learning_rate: 1e-2}

The loop goes by `gamma` and `n_steps`; all other keys are the learner's own.  python examples/own_learner.py
"""

import tempfile
from typing import Any

from torch import Generator, Tensor

from uniarena import Batch, Rollout, train
from uniarena.config import config
from uniarena.learners.base import Learner, Update
from uniarena.ops.returns import discounted_return, trace_ends
from uniarena.ops.statistics import standardize
from uniarena.optim import OptimizerConfig, build_optimizer


@config
class ReinforceConfig:
    learning_rate: float = 1e-2
    gamma: float = 0.99  # discount per environment step
    n_steps: int = 128  # rows of every environment in one rollout


class Reinforce(Learner):
    """Ascends log π(a|s) · return. Williams 1992, "Simple statistical gradient-following algorithms"."""

    Config = ReinforceConfig

    def __init__(self, model: Any, cfg: ReinforceConfig, minimize: Any, rng: Generator) -> None:
        super().__init__(model, cfg, minimize, rng)
        self.optimizer = build_optimizer(model.named_parameters(), OptimizerConfig(), cfg.learning_rate)

    def update(self, rollout: Rollout) -> Update:
        rows = rollout.rows
        returns = discounted_return(rows.reward, rows.discount, trace_ends(rows))
        batch = rows.replace(weight=standardize(returns, rows.valid)).select_valid()
        return Update(self.minimize(self.loss, batch, self.optimizer))

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        dist, _ = self.model.policy(batch.obs)
        gain = (dist.log_prob(batch.action) * batch.weight).mean()
        return -gain, {"entropy": dist.entropy().mean().detach()}


def main(env_steps: int = 40_000) -> float:
    """Train on CartPole; prints and returns the evaluated return."""
    run = {"environment": {"id": "CartPole-v1", "num_envs": 8}, "learner": {"type": Reinforce}}
    steps = [f"training.total_timesteps={env_steps}"]
    with tempfile.TemporaryDirectory() as folder:
        result = train(run, steps, run_dir=f"{folder}/run", quiet=True)
    print(f"REINFORCE on CartPole-v1, {result.env_steps:,} steps; {result.eval}")
    return result.eval.return_mean


if __name__ == "__main__":
    main()
