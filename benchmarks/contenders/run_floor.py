"""The matrix products of SAC's updates on HalfCheetah and nothing else: what no arrangement of the rest can beat.

Two critics and a policy of 256×256 on batches of 256, each product written into memory that is kept. The critics' own
gradients are left out of the policy's step, as every good implementation does.
"""

from __future__ import annotations

import json
import time

import torch
from stopwatch import arguments

ROWS, OBS, ACT, HIDDEN, MEMBERS = 256, 17, 6, 256, 2


class Layer:
    """E linear layers side by side: one product forward, and those of its gradients."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        self.x, self.w = torch.randn(members, ROWS, inputs), torch.randn(members, inputs, outputs)
        self.out, self.grad = torch.empty(members, ROWS, outputs), torch.randn(members, ROWS, outputs)
        self.dw, self.dx = torch.empty_like(self.w), torch.empty_like(self.x)
        self.flop = 2 * members * ROWS * inputs * outputs

    def forward(self) -> int:
        torch.bmm(self.x, self.w, out=self.out)
        return self.flop

    def weights(self) -> int:
        # of one output: the product with a row is ten times faster than the one with a column
        if self.w.shape[-1] == 1:
            torch.bmm(self.grad.mT, self.x, out=self.dw.mT)
        else:
            torch.bmm(self.x.mT, self.grad, out=self.dw)
        return self.flop

    def inputs(self) -> int:
        torch.bmm(self.grad, self.w.mT, out=self.dx)
        return self.flop


def network(members: int, inputs: int, outputs: int) -> list[Layer]:
    sizes = [(inputs, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, outputs)]
    return [Layer(members, *size) for size in sizes]


class Products:
    """One update's. The last layer of a critic is left out: with one output it is no matrix product to speak of."""

    def __init__(self) -> None:
        self.critic, self.policy = network(MEMBERS, OBS + ACT, 1)[:2], network(1, OBS, 2 * ACT)

    def update(self) -> int:
        """→ floating-point operations."""
        flop = 0
        for net in (self.policy, self.critic, self.critic, self.policy, self.critic):
            for layer in net:  # next action, its target; Q; action, its Q
                flop += layer.forward()
        for net, weights, inputs in (
            (self.critic, True, False),
            (self.critic, False, True),
            (self.policy, True, False),
        ):
            for index, layer in enumerate(net):
                flop += layer.weights() if weights else 0
                flop += layer.inputs() if inputs or index else 0
        return flop


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    products, updates = Products(), args.last - args.first
    for _ in range(20):
        flop = products.update()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(updates):
        products.update()
    row = {"steps": updates, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    print(json.dumps({**row, "gflop_per_update": flop / 1e9}))


if __name__ == "__main__":
    main()
