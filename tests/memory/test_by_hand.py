"""What a transformer sees and what a key-value memory keeps, worked out by hand."""

from __future__ import annotations

import pytest
import torch

from uniarena.config import ConfigError
from uniarena.nets.external_memory import EMPTY, KeyValueConfig, KeyValueMemory
from uniarena.nets.transformer import Gate, GatedTransformer, GatedTransformerConfig


def transformer(window: int = 2) -> GatedTransformer:
    torch.manual_seed(0)
    cfg = GatedTransformerConfig(window=window, hidden_size=4, num_heads=2, num_layers=1)
    return GatedTransformer(cfg, 3)


def test_a_row_sees_its_episode_as_far_back_as_the_window_reaches() -> None:
    known = torch.tensor([[0.0, 1.0]])
    first = torch.tensor([[False], [False], [True], [False]])
    visible, back = transformer()._visible(known, first)
    # two rows of the state, then four of the sequence; the third one begins an episode
    assert visible[0].int().tolist() == [
        [0, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]
    assert back[1].tolist() == [2, 2, 1, 0, 0, 0] and back[3, 2:].tolist() == [2, 2, 1, 0]
    assert transformer()._known(known, first).tolist() == [[1.0, 1.0]]
    assert transformer()._known(known, first[:3]).tolist() == [[0.0, 1.0]]
    assert transformer()._known(known, first[:1]).tolist() == [[1.0, 1.0]]


def test_rows_beyond_the_window_are_forgotten() -> None:
    memory, x = transformer(), torch.randn(5, 1, 3)
    other = x.clone()
    other[0] += 1.0
    one, two = memory(x)[0], memory(other)[0]
    assert not torch.allclose(one[2], two[2], atol=1e-4) and torch.allclose(one[3:], two[3:], atol=1e-6)


def test_a_gate_begins_nearly_closed() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(50, 8), torch.randn(50, 8)
    open_, closed = (Gate(8, bias) for bias in (-20.0, 20.0))
    assert torch.allclose(closed(x, y), x, atol=1e-4)
    h = open_(x, y)
    assert not torch.allclose(h, x, atol=0.1) and float(h.detach().abs().max()) <= 1.0  # a tanh


@torch.no_grad()
def test_a_gate_by_hand() -> None:
    gate = Gate(1, 0.5)
    gate.of_input.weight.copy_(torch.tensor([[1.0], [0.5]]))
    gate.of_output.weight.copy_(torch.tensor([[0.2], [0.3], [0.4]]))
    gate.candidate.weight.fill_(2.0)
    x, y = torch.tensor([1.0]), torch.tensor([2.0])
    r = torch.sigmoid(0.2 * y + 1.0 * x)
    z = torch.sigmoid(0.3 * y + 0.5 * x - 0.5)
    assert torch.allclose(gate(x, y), (1 - z) * x + z * torch.tanh(0.4 * y + 2.0 * (r * x)))


def key_value(slots: int = 2) -> KeyValueMemory:
    torch.manual_seed(0)
    return KeyValueMemory(KeyValueConfig(slots=slots, hidden_size=2, num_heads=1), 1)


def test_what_is_there_is_not_written_again_and_what_was_met_least_recently_makes_room() -> None:
    memory = key_value()
    state = memory.initial_state(1)
    told = []
    for number in (1.0, 2.0, 1.05, 3.0, 1.0):
        _, state = memory(torch.tensor([[number]]), state)
        told.append((state["slots"][0, :, 0].tolist(), state["age"][0].tolist()))
    assert told[0] == ([1.0, 0.0], [0.0, EMPTY])
    assert told[1] == ([1.0, 2.0], [1.0, 0.0])
    assert told[2] == ([1.0, 2.0], [0.0, 1.0])  # met again
    assert told[3] == ([1.0, 3.0], [1.0, 0.0])  # 2 was met less recently
    assert told[4] == ([1.0, 3.0], [0.0, 1.0])


@torch.no_grad()
def test_reading_by_hand() -> None:
    memory = key_value()
    assert memory(torch.tensor([[4.0]]))[0].tolist() == [[4.0, 0.0, 0.0]]  # nothing is there
    state = {"slots": torch.tensor([[[1.0], [2.0]]]), "age": torch.tensor([[0.0, 3.0]])}
    out, _ = memory(torch.tensor([[4.0]]), state)
    query = memory.query(torch.tensor([4.0]))
    key, value = memory.key[0, :, 0], memory.value[0, :, 0]
    scores = torch.stack([query @ (key * 1.0), query @ (key * 2.0), torch.tensor(0.0)]) / 2**0.5
    weights = scores.softmax(0)
    assert torch.allclose(out[0, 1:], weights[0] * value + weights[1] * 2.0 * value, atol=1e-6)


def test_heads_share_the_width() -> None:
    for config in (GatedTransformerConfig, KeyValueConfig):
        with pytest.raises(ConfigError, match="must divide"):
            config(hidden_size=10, num_heads=4)
