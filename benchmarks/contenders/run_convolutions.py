"""Pong without anything of a framework: what PPO's networks must compute, in turns with EnvPool, and nothing else.

A rollout is 128 steps of EnvPool with a pass of NatureCNN on 8 rows before each; then come values of all rows, and the
epochs: a pass forward and one backward of every minibatch, in plain torch, from a gradient that is given. No noise,
no log-probs, no loss, no optimiser, no clipping, no advantages.
"""

from __future__ import annotations

import json
import time

import envpool
import numpy as np
import torch
from on_policy import PONG, WORK
from stopwatch import arguments
from torch import nn


def network(actions: int) -> nn.Sequential:
    """NatureCNN with one linear layer for action logits and value."""
    convolutions = [
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
    ]
    head = [nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions + 1)]
    return nn.Sequential(*convolutions, *head)


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    work = WORK[args.task]
    pool = envpool.make(
        work.env_id,
        env_type="gymnasium",
        num_envs=work.envs,
        seed=args.seed,
        num_threads=args.threads,
        **PONG,
    )
    net, rows = network(int(pool.action_space.n)), work.steps * work.envs
    frames = torch.zeros((work.steps, work.envs, *pool.observation_space.shape), dtype=torch.uint8)
    actions = np.random.default_rng(0).integers(0, pool.action_space.n, (work.steps, work.envs))
    gradient = torch.randn(work.batch, int(pool.action_space.n) + 1) * 1e-3
    obs = pool.reset()[0]

    def rollout() -> None:
        nonlocal obs
        written = frames.numpy()
        with torch.no_grad():
            for t in range(work.steps):
                written[t] = obs
                net(frames[t].float().div_(255.0))
                obs = pool.step(actions[t])[0]
            net(frames.flatten(0, 1).float().div_(255.0))

    def update() -> None:
        flat = frames.flatten(0, 1)
        for _ in range(work.epochs):
            for index in torch.randperm(rows).split(work.batch):
                net(flat[index].float().div_(255.0)).backward(gradient)

    rollout()
    update()
    rollouts = (args.last - args.first) // work.steps
    wall, cpu = time.perf_counter(), time.process_time()
    gathered = 0.0
    for _ in range(rollouts):
        began = time.perf_counter()
        rollout()
        gathered += time.perf_counter() - began
        update()
    row = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "gathering_s": gathered}
    print(json.dumps({"steps": rollouts * rows, **row}))


if __name__ == "__main__":
    main()
