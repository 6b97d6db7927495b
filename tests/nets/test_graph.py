"""Sets and graphs: order and padding change nothing, links do, and what does not fit is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from uniarena.config import ConfigError
from uniarena.nets.encoders import EncoderConfig, build_encoder
from uniarena.nets.graph import Entities, Messages

E, F, B = 5, 3, 4
SPACE = spaces.Dict(
    {
        "nodes": spaces.Box(-1.0, 1.0, (E, F), np.float32),
        "there": spaces.MultiBinary(E),
        "edges": spaces.MultiBinary((E, E)),
        "time": spaces.Box(-1.0, 1.0, (2,), np.float32),
    }
)
GRAPH = EncoderConfig(network="graph", mask="there", edges="edges", hidden_size=6, rounds=2)


def observed() -> dict[str, Any]:
    torch.manual_seed(0)
    there = torch.tensor([[1, 1, 1, 0, 0]] * B, dtype=torch.int8)
    edges = (torch.rand(B, E, E) < 0.5).to(torch.int8)
    return {"nodes": torch.randn(B, E, F), "there": there, "edges": edges, "time": torch.randn(B, 2)}


@pytest.mark.parametrize("rounds", [0, 2])
def test_order_and_padding_change_nothing(rounds: int) -> None:
    torch.manual_seed(0)
    net, obs = Entities(F, 6, rounds), observed()
    out = net(obs["nodes"], obs["there"], obs["edges"])
    assert out.shape == (B, net.out_dim) == (B, 12)
    order = torch.tensor([4, 2, 0, 3, 1])
    turned = obs["nodes"][:, order], obs["there"][:, order], obs["edges"][:, order][:, :, order]
    assert torch.allclose(net(*turned), out, atol=1e-6)
    nan = torch.where(obs["there"][..., None] > 0, obs["nodes"], torch.nan)
    assert torch.equal(net(nan, obs["there"], obs["edges"]), out)
    smaller = obs["nodes"][:, :3], obs["there"][:, :3], obs["edges"][:, :3, :3]
    assert torch.allclose(net(*smaller), out, atol=1e-6)


def test_nobody_there_is_nothing() -> None:
    net, obs = Entities(F, 6, 1), observed()
    assert not net(obs["nodes"], torch.zeros(B, E), obs["edges"]).any()


def test_a_round_of_messages_by_hand() -> None:
    messages = Messages(1)
    with torch.no_grad():
        for layer, weights in (
            (messages.sender, [2.0]),
            (messages.receiver, [1.0]),
            (messages.update, [0.5, 3.0]),
        ):
            layer.weight.copy_(torch.tensor([weights]))
            layer.bias.zero_()
    h = torch.tensor([[1.0], [2.0], [5.0]])
    linked = torch.tensor([[0, 1, 0], [0, 0, 0], [0, 1, 0]], dtype=torch.bool)  # 0 → 1 ← 2
    heard = ((2 * 1 + 2) + (2 * 5 + 2)) / 2
    expected = [1 + 0.5, 2 + 0.5 * 2 + 3 * heard, 5 + 0.5 * 5]
    assert messages(h, linked)[:, 0].tolist() == pytest.approx(expected)


def test_only_a_graph_hears_its_neighbours() -> None:
    obs = observed()
    other = {**obs, "edges": 1 - obs["edges"]}
    for network, same in (("set", True), ("graph", False)):
        torch.manual_seed(1)
        cfg = EncoderConfig(network=network, mask="there", hidden_size=6) if same else GRAPH  # type: ignore[arg-type]
        encoder = build_encoder(SPACE if not same else without_edges(), per_key={"nodes": cfg})
        assert torch.allclose(encoder(obs), encoder(other), atol=1e-6) == same


def without_edges() -> spaces.Dict:
    return spaces.Dict({key: space for key, space in SPACE.items() if key != "edges"})


def test_mask_and_edges_are_read_with_their_entities_and_not_by_themselves() -> None:
    encoder = build_encoder(SPACE, per_key={"nodes": GRAPH})
    assert encoder.out_dim == 12 + 2 and not encoder.identity
    lead = encoder({key: leaf.expand(3, *leaf.shape) for key, leaf in observed().items()})
    assert lead.shape == (3, B, 14) and torch.allclose(lead[1], encoder(observed()))


@pytest.mark.parametrize(
    ("cfg", "path"),
    [
        ({"network": "set", "mask": "absent"}, "mask"),
        ({"network": "set", "mask": "edges"}, "mask"),
        ({"network": "set", "mask": "time"}, "mask"),
        ({"network": "graph", "edges": "there"}, "edges"),
    ],
)
def test_what_does_not_fit_is_refused(cfg: Any, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_encoder(SPACE, per_key={"nodes": EncoderConfig(**cfg)})
    assert caught.value.path == f"agent.policy.encoders.nodes.{path}"


def test_entities_are_a_table() -> None:
    with pytest.raises(ConfigError, match="entities are a table"):
        build_encoder(SPACE, per_key={"time": EncoderConfig(network="set")})
    for wrong in ({"mask": "there"}, {"network": "set", "edges": "edges"}):
        with pytest.raises(ConfigError, match="is for entities"):
            EncoderConfig(**wrong)  # type: ignore[arg-type]
