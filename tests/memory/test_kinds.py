"""Every kind of memory keeps the contract: a sequence does what single steps do, and no episode sees another."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from uniarena.batch import tree_leaves, tree_map
from uniarena.config import ConfigError
from uniarena.nets.memory import Memory, build_memory
from uniarena.nets.rnn import LSTM, RecurrentConfig, cut
from uniarena.registry import BUILT_IN

T, B, F = 11, 5, 3
KINDS: dict[str, dict[str, Any]] = {
    "lstm": {"type": "lstm", "hidden_size": 7},
    "lstm, two layers": {"type": "lstm", "hidden_size": 7, "num_layers": 2},
    "gru": {"type": "gru", "hidden_size": 7},
    "gru, two layers": {"type": "gru", "hidden_size": 7, "num_layers": 2},
    "transformer": {"type": "gtrxl", "window": 5, "hidden_size": 8, "num_heads": 2, "gate_bias": 0.0},
    "key-value": {"type": "key_value", "slots": 3, "hidden_size": 4, "num_heads": 2},
    "short window": {
        "type": "gtrxl",
        "window": 2,
        "hidden_size": 8,
        "num_heads": 2,
        "num_layers": 1,
        "gate_bias": 0.0,
    },
    "long window": {"type": "gtrxl", "window": 30, "hidden_size": 8, "num_heads": 4, "gate_bias": 0.0},
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind: str) -> Memory:
    torch.manual_seed(0)
    return build_memory(KINDS[kind], F)


def lived(memory: Memory, count: int, steps: int = 4) -> Any:
    """The state of columns that have seen something."""
    state = memory.initial_state(count)
    for _ in range(steps):
        state = tree_map(lambda leaf: leaf.detach(), memory(torch.randn(count, F), state)[1])
    return state


def test_every_kind_is_tried() -> None:
    assert {section["type"] for section in KINDS.values()} == set(BUILT_IN["memory"])


@each_kind
@pytest.mark.parametrize("share", [0.0, 0.03, 0.3, 1.0])
def test_a_sequence_does_what_single_steps_do(kind: str, share: float) -> None:
    memory = made(kind)
    x, first, state = torch.randn(T, B, F), torch.rand(T, B) < share, lived(memory, B)
    with torch.no_grad():
        out, after = memory(x, state, first)
        for t in range(T):
            row, state = memory(x[t], state, first[t])
            assert row.shape == (B, memory.out_dim)
            assert torch.allclose(out[t], row, atol=1e-5)
    for one, other in zip(tree_leaves(after), tree_leaves(state), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@each_kind
def test_the_gradients_of_a_sequence_are_those_of_its_pieces(kind: str) -> None:
    """A sequence in which an episode begins, against its two episodes by themselves."""
    memory = made(kind)
    x, first = torch.randn(T, 1, F), torch.zeros(T, 1, dtype=torch.bool)
    first[4] = True
    state = lived(memory, 1)
    weights = torch.randn(T, 1, memory.out_dim)
    whole = gradients(memory, (memory(x, state, first)[0] * weights).sum())
    parts = (memory(x[:4], state)[0] * weights[:4]).sum() + (memory(x[4:])[0] * weights[4:]).sum()
    for one, other in zip(whole, gradients(memory, parts), strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def gradients(memory: Memory, loss: torch.Tensor) -> list[torch.Tensor]:
    used = torch.autograd.grad(loss, list(memory.parameters()), allow_unused=True)
    return [g for g in used if g is not None]


@each_kind
def test_what_was_not_finite_ends_with_its_episode(kind: str) -> None:
    memory = made(kind)
    broken = tree_map(
        lambda leaf: torch.full_like(leaf, torch.nan) if leaf.is_floating_point() else leaf, lived(memory, 2)
    )
    first = torch.tensor([True, True])
    x = torch.randn(2, F)
    out, state = memory(x, broken, first)
    assert torch.allclose(out, memory(x)[0]) and all(leaf.isfinite().all() for leaf in tree_leaves(state))
    rows, _ = memory(x[None], broken, first[None])
    assert torch.allclose(rows[0], out, atol=1e-6)


@each_kind
def test_what_is_not_finite_in_one_episode_is_not_heard_of_in_the_next(kind: str) -> None:
    memory = made(kind)
    x, first = torch.randn(6, 1, F), torch.zeros(6, 1, dtype=torch.bool)
    x[1], first[3] = torch.nan, True
    out, state = memory(x, None, first)
    assert out[:1].isfinite().all() and out[3:].isfinite().all()
    assert not out[1].isfinite().any() and not out[2].isfinite().all()
    assert torch.allclose(out[3:], memory(x[3:])[0], atol=1e-6)
    assert all(leaf.isfinite().all() for leaf in tree_leaves(state))


@each_kind
def test_rows_before_matter(kind: str) -> None:
    memory = made(kind)
    x = torch.randn(2, F)
    assert not torch.allclose(memory(x, lived(memory, 2))[0], memory(x)[0], atol=1e-3)


def test_pieces_of_sequences() -> None:
    first = torch.tensor([[0, 1], [0, 0], [1, 0], [1, 0]], dtype=torch.bool)
    pieces = cut(first)
    assert pieces.column.tolist() == [0, 0, 0, 1] and pieces.fresh.tolist() == [False, True, True, True]
    x = torch.arange(8.0).reshape(4, 2, 1)
    split = pieces.split(x)[..., 0]
    assert split[:2, 0].tolist() == [0, 2] and split[0, 1] == 4 and split[0, 2] == 6
    assert split[:, 3].tolist() == [1, 3, 5, 7]
    assert torch.equal(pieces.join(pieces.split(x)), x)


def test_an_lstm_begins_by_keeping() -> None:
    lstm = LSTM(RecurrentConfig(hidden_size=4), F)
    bias = dict(lstm.named_parameters())["layers.0.bias_ih_l0"]
    assert bias.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8


class Counter(Memory):
    """Counts the rows of an episode: the least that a memory of one's own has to give."""

    Config = RecurrentConfig

    def __init__(self, cfg: RecurrentConfig, in_dim: int) -> None:
        super().__init__()
        self.out_dim = in_dim + 1
        self.scale = torch.nn.Parameter(torch.ones(1))

    def initial_state(self, count: int) -> torch.Tensor:
        return torch.zeros(count, 1)

    def step(self, features: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        return torch.cat([features, state * self.scale], -1), state + 1


def test_a_memory_of_ones_own_needs_but_a_step() -> None:
    memory = build_memory({"type": "tests.memory.test_kinds:Counter"}, 2)
    first = torch.tensor([[0], [0], [1], [0]], dtype=torch.bool)
    out, state = memory(torch.zeros(4, 1, 2), torch.tensor([[5.0]]), first)
    assert out[:, 0, 2].tolist() == [5, 6, 0, 1] and state.tolist() == [[2.0]]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"type": "lstn"}, "did you mean 'lstm'"),
        ({"type": "lstm", "hidden_size": 0}, "agent.memory.hidden_size"),
        ({"type": "lstm", "width": 3}, "agent.memory.width"),
        ({"type": "torch.nn:LSTM"}, "not a subclass"),
        ({"hidden_size": 3}, "no memory is named"),
    ],
)
def test_wrong_sections_are_answered(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_memory(section, 3)
