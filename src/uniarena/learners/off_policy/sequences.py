"""Q-learning from sequences, for networks with memory.

Kapturowski et al. 2019 (R2D2), section 2.3: a sequence begins with the state that was stored when it was gathered;
burn-in rows bring it up to date without gradients, for the online and the target network each by itself, and the rows
after them are learned from. Deviations: no rescaling of values, sequences end with their episode, and no priorities.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from uniarena.batch import Batch, Tree, tree_map
from uniarena.learners.off_policy.dqn_config import DQNConfig
from uniarena.ops.statistics import Metrics
from uniarena.ops.td import greedy_action, n_step_sums, of_action
from uniarena.optim.targets import Target
from uniarena.values.q import QNetwork
from uniarena.values.q_model import QModel


class Sequences:
    """Targets and loss of sequences `[burn_in + L, N]`, as `SequenceReplay` gives them.

    Args:
        model: the Q-network with memory.
        target: its slow copy.
        cfg: of the learner.
        noisy: noisy layers of both.
    """

    def __init__(self, model: QModel, target: Target, cfg: DQNConfig, noisy: list[Any]) -> None:
        self.model, self.target, self.cfg, self.noisy = model, target, cfg, noisy

    def targets(self, batch: Batch, rng: torch.Generator) -> Batch:
        """The `[L, N]` learned rows with `target [L, N, M]`, and as `state` what the online network knows before them.

        Rows before the first real one are read as beginnings, and every row is followed by its true successor: what
        stands behind the end of a sequence is padding.
        """
        network, head = self.model.network, self.model.network.head
        burn_in = int((batch.weight > 0).any(1).nonzero()[0])
        valid = batch.valid
        chain = tree_map(
            lambda now, then: torch.cat(
                [now[:1], torch.where(_like(valid, now), then, torch.roll(now, -1, 0))]
            ),
            batch.obs,
            batch.next_obs,
        )
        first = torch.cat([batch.is_first[:1] | ~valid[:1], ~valid])
        inputs, state = self.model.policy.inputs(chain), None
        if "state" in batch:
            state = tree_map(lambda leaf: leaf[0], batch.state)
        for layer in self.noisy:
            layer.training = True  # though the target network is in evaluation mode
        before = network.initial_state(valid.shape[1]) if state is None else state
        if burn_in:
            before = network.remember(_rows(inputs, 0, burn_in), before, first[:burn_in])[1]
        length, count = valid[burn_in:].shape
        fractions = head.draw(length * count, rng)
        following, judged = self._successors(
            inputs, state, before, first, burn_in, _shaped(fractions, length)
        )
        mask = self.model.policy.mask(_rows(chain, burn_in + 1, None))
        best = greedy_action(head.q(judged), mask).flatten()
        real = batch.weight[burn_in:] > 0
        reward, discount, last = n_step_sums(
            batch.reward[burn_in:], batch.discount[burn_in:], real, self.cfg.n_step
        )
        column = torch.arange(count, device=last.device)
        ends = (last * count + column).flatten()
        worth = of_action(following.flatten(0, 1), best)[ends]
        target = head.target(worth, reward.flatten(), discount.flatten(), self.cfg.target_clip)
        fields: dict[str, Any] = {}
        if fractions is not None:
            fields["fractions"] = _shaped(head.draw(length * count, rng), length)
        return Batch(
            (length, count),
            fields,
            obs=_rows(chain, burn_in, -1),
            action=batch.action[burn_in:],
            target=target.unflatten(0, (length, count)),
            weight=batch.weight[burn_in:],
            is_first=first[burn_in:-1],
            state=tree_map(lambda leaf: leaf.expand(length, *leaf.shape), before),
        )

    def _successors(
        self,
        inputs: Tree,
        state: Tree | None,
        before: Tree,
        first: Tensor,
        burn_in: int,
        fractions: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """After each learned row: outputs `[L, N, A, K]` of the target network, and those that judge, as in `DQN`."""
        network, slow = self.model.network, cast(QNetwork, self.target.module)
        known = slow.remember(inputs, state, first)[0][burn_in + 1 :]
        following = slow.outputs(known, fractions)
        if self.cfg.double:
            seen = network.remember(_rows(inputs, burn_in, None), before, first[burn_in:])[0]
            return following, network.outputs(seen[1:])
        return following, following if fractions is None else slow.outputs(known)

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """The loss of learned rows with targets, its metrics, and `surprise` of those that are no padding."""
        network, head = self.model.network, self.model.network.head
        state = tree_map(lambda leaf: leaf[0], batch.state)
        features = network.remember(self.model.policy.inputs(batch.obs), state, batch.is_first)[0]
        fractions, real = batch.get("fractions"), (batch.weight > 0).flatten()
        out = of_action(network.outputs(features, fractions).flatten(0, 1), batch.action.flatten())[real]
        target, weight = batch.target.flatten(0, 1)[real], batch.weight.flatten()[real]
        drawn = None if fractions is None else fractions.flatten(0, 1)[real]
        fit = head.fit(out, target, self.cfg.td_clip, drawn)
        metrics = {
            "q": head.q(out.detach()).mean(),
            "target": head.expected(target).mean(),
            "surprise": fit.surprise,
        }
        return (fit.loss * weight).mean(), metrics


def _rows(tree: Tree, start: int, stop: int | None) -> Tree:
    return tree_map(lambda leaf: leaf[start:stop], tree)


def _shaped(drawn: Tensor | None, length: int) -> Tensor | None:
    """`[L·N, K]` → `[L, N, K]`."""
    return None if drawn is None else drawn.unflatten(0, (length, -1))


def _like(valid: Tensor, leaf: Tensor) -> Tensor:
    return valid.reshape(*valid.shape, *(1,) * (leaf.dim() - 2))
