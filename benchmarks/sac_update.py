"""One SAC update, ours against the usual way of writing it, interleaved.

    OMP_NUM_THREADS=1 python benchmarks/sac_update.py

The usual way is Stable-Baselines3's `SAC.train`, written down here from its source (version 2.9) without the calls
around it: separate critics, a validated distribution, gradients into the critics that the policy's loss throws away,
Adam and Polyak averaging tensor by tensor. Both take the same batch of HalfCheetah's shapes, with 256×256 networks.
What single savings are worth is seen by leaving them out of ours. With one thread the milliseconds are those of the
processor, so that other work on the machine counts less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

from uniarena.batch import Batch
from uniarena.config import parse
from uniarena.learners.off_policy.sac import SAC
from uniarena.optim import Minimize
from uniarena.seeding import Streams

OBS, ACT, HIDDEN = 17, 6, 256
Parts = dict[str, float]


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs)
    )


class Usual:
    """Two critics one after the other, torch.distributions, Adam and Polyak averaging tensor by tensor."""

    def __init__(self) -> None:
        self.body = nn.Sequential(nn.Linear(OBS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
        self.mu, self.log_std = nn.Linear(HIDDEN, ACT), nn.Linear(HIDDEN, ACT)
        self.actor = nn.ModuleList([self.body, self.mu, self.log_std])
        self.critic = nn.ModuleList([mlp(OBS + ACT, 1), mlp(OBS + ACT, 1)])
        self.target = nn.ModuleList([mlp(OBS + ACT, 1), mlp(OBS + ACT, 1)])
        self.target.load_state_dict(self.critic.state_dict())
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.critic_adam = torch.optim.Adam(self.critic.parameters(), lr=3e-4)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], lr=3e-4)

    def act(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        latent = self.body(obs)
        mean, log_std = self.mu(latent), torch.clamp(self.log_std(latent), -20, 2)
        dist = Normal(mean, torch.ones_like(mean) * log_std.exp())
        raw = dist.rsample()
        action = torch.tanh(raw)
        log_prob = dist.log_prob(raw).sum(1) - torch.sum(torch.log(1 - action**2 + 1e-6), dim=1)
        return action, log_prob

    def values(self, critics: nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> list[torch.Tensor]:
        return [critic(torch.cat([obs, action], dim=1)) for critic in critics]

    def update(self, batch: Batch) -> None:
        action, log_prob = self.act(batch.obs)
        log_prob = log_prob.reshape(-1, 1)
        alpha = torch.exp(self.log_alpha.detach())
        alpha_loss = -(self.log_alpha * (log_prob - ACT).detach()).mean()
        self.alpha_adam.zero_grad()
        alpha_loss.backward()
        self.alpha_adam.step()
        with torch.no_grad():
            next_action, next_log_prob = self.act(batch.next_obs)
            following = torch.cat(self.values(self.target, batch.next_obs, next_action), dim=1)
            following, _ = torch.min(following, dim=1, keepdim=True)
            following = following - alpha * next_log_prob.reshape(-1, 1)
            target = batch.reward[:, None] + batch.discount[:, None] * following
        current = self.values(self.critic, batch.obs, batch.action)
        critic_loss = 0.5 * sum(F.mse_loss(q, target) for q in current)
        self.critic_adam.zero_grad()
        critic_loss.backward()
        self.critic_adam.step()
        q = torch.cat(self.values(self.critic, batch.obs, action), dim=1)
        least, _ = torch.min(q, dim=1, keepdim=True)
        actor_loss = (alpha * log_prob - least).mean()
        self.actor_adam.zero_grad()
        actor_loss.backward()
        self.actor_adam.step()
        with torch.no_grad():
            for source, copy in zip(self.critic.parameters(), self.target.parameters(), strict=True):
                copy.data.mul_(1 - 0.005)
                torch.add(copy.data, source.data, alpha=0.005, out=copy.data)
        self.logged = [critic_loss.item(), actor_loss.item(), alpha_loss.item()]


def ours(**fields: object) -> SAC:
    observation, action = (
        spaces.Box(-np.inf, np.inf, (OBS,), np.float32),
        spaces.Box(-1, 1, (ACT,), np.float32),
    )
    cfg, streams = parse(SAC.Config, fields, "learner"), Streams(0)
    model = SAC.build_model(observation, action, {}, {}, None, streams, cfg=cfg)
    return SAC(model, cfg, Minimize(), streams.torch("minibatch"))


def by_autograd(frozen: bool = True) -> SAC:
    """Gradients from a graph, not those written down by hand; without `frozen` also those that are thrown away."""
    learner = ours()
    learner._by_hand = learner._policy_by_hand = None
    if not frozen:
        learner.model.q.frozen = contextlib.nullcontext
    return learner


def batch_of(rows: int) -> Batch:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(rows, *shape, generator=generator)

    fields = {"obs": normal(OBS), "next_obs": normal(OBS), "action": normal(ACT).tanh(), "reward": normal()}
    return Batch((rows,), discount=torch.full((rows,), 0.99), **fields)


def floor() -> Callable[[Batch], object]:
    """The matrix products of one update alone, critics frozen in the policy's loss."""
    rows = 256

    def layers(members: int, inputs: int, outputs: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        widths = [inputs, HIDDEN, HIDDEN, outputs]
        return [(torch.randn(members, rows, a), torch.randn(members, a, b)) for a, b in pairwise(widths)]

    critic, actor = layers(2, OBS + ACT, 1), layers(1, OBS, 2 * ACT)
    gradients = {id(w): torch.randn(len(w), rows, w.shape[-1]) for _, w in critic + actor}

    def forward(net: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for x, w in net:
            torch.bmm(x, w)

    def backward(net: list[tuple[torch.Tensor, torch.Tensor]], weights: bool, inputs: bool) -> None:
        for index, (x, w) in enumerate(net):
            if weights:
                torch.bmm(x.mT, gradients[id(w)])
            if index > 0 or inputs:
                torch.bmm(gradients[id(w)], w.mT)

    def products(batch: Batch) -> None:
        for net in (actor, critic, critic, actor, critic):  # next action, target, Q; action, Q
            forward(net)
        backward(critic, weights=True, inputs=False)
        backward(critic, weights=False, inputs=True)
        backward(actor, weights=True, inputs=False)

    return products


def measure(candidates: dict[str, Callable[[Batch], object]], batch: Batch, rounds: int) -> dict[str, Parts]:
    """Each candidate once a round, in turn, so that a busy machine slows all of them alike."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for update in candidates.values():
        for _ in range(5):
            update(batch)
    for _ in range(rounds):
        for name, update in candidates.items():
            start = clock()
            update(batch)
            times[name].append(1e3 * (clock() - start))
    return {name: {"median_ms": statistics.median(ms), "least_ms": min(ms)} for name, ms in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    candidates = {
        "usual": Usual().update,
        "ours": ours().update,
        "ours, by autograd": by_autograd().update,
        "ours, by autograd, gradients into critics": by_autograd(frozen=False).update,
        "ours, torch's own Adam": ours(optimizer={"type": "torch.optim:Adam"}).update,
        "matrix products alone": floor(),
    }
    found = measure(candidates, batch_of(args.batch_size), args.rounds)
    for parts in found.values():
        for name in ("median_ms", "least_ms"):
            parts[f"usual/this, {name}"] = found["usual"][name] / parts[name]
    print(
        json.dumps(
            {name: {k: round(v, 3) for k, v in parts.items()} for name, parts in found.items()}, indent=2
        )
    )


if __name__ == "__main__":
    main()
