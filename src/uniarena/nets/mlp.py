"""Multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "silu": nn.SiLU,
}


class MLP(nn.Module):
    """Linear layers with an activation after each; with `out_dim`, a last linear layer without one.

    Args:
        in_dim: width of the input.
        hidden_sizes: widths of the hidden layers; may be empty.
        activation: one of `tanh, relu, elu, gelu, leaky_relu, silu`.
        out_dim: width of a last linear layer; None: the output is the last hidden layer.

    Attributes:
        layers: the layers in order, an `nn.Sequential`.
        out_dim: width of the output.

    Raises:
        ValueError: an unknown activation, or a width below 1.
    """

    def __init__(
        self,
        in_dim: int,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: str = "tanh",
        out_dim: int | None = None,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation={activation!r}: expected one of {', '.join(ACTIVATIONS)}.")
        if any(size < 1 for size in hidden_sizes):
            raise ValueError(f"hidden_sizes={list(hidden_sizes)}: every width must be at least 1.")
        layers: list[nn.Module] = []
        width = in_dim
        for size in hidden_sizes:
            layers += [nn.Linear(width, size), ACTIVATIONS[activation]()]
            width = size
        if out_dim is not None:
            layers.append(nn.Linear(width, out_dim))
            width = out_dim
        self.layers = nn.Sequential(*layers)
        self.out_dim = width

    def forward(self, x: Tensor) -> Tensor:
        """`[..., in_dim]` → `[..., out_dim]`."""
        out: Tensor = self.layers(x)
        return out
