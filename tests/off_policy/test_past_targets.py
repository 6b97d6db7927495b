"""Several target networks: which states they hold, and what the learners make of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.off_policy import targets
from tests.off_policy.chain import chain, make
from uniarena.config import ConfigError
from uniarena.optim.past_targets import PastTargets, build_targets
from uniarena.optim.targets import Target


def constant(value: float) -> nn.Linear:
    linear = nn.Linear(1, 1)
    nn.init.zeros_(linear.weight)
    nn.init.constant_(linear.bias, value)
    return linear


def test_members_are_the_last_states() -> None:
    source = constant(0.0)
    past = PastTargets(source, tau=1.0, interval=2, count=3)
    seen = []
    for step in range(1, 9):
        nn.init.constant_(source.bias, float(step))
        past.update()
        seen.append(past(torch.zeros(1, 1)).flatten().tolist())
    assert seen == [
        [0.0, 0.0, 0.0],
        [2.0, 0.0, 0.0],
        [2.0, 0.0, 0.0],
        [4.0, 2.0, 0.0],
        [4.0, 2.0, 0.0],
        [6.0, 4.0, 2.0],
        [6.0, 4.0, 2.0],
        [8.0, 6.0, 4.0],
    ]
    assert past.updates == 8
    other = PastTargets(constant(5.0), tau=1.0, interval=2, count=3)
    other.load_state_dict(past.state_dict())
    assert torch.equal(other(torch.zeros(1, 1)), past(torch.zeros(1, 1))) and other.updates == 8


def test_soft_moves_of_the_newest() -> None:
    source = constant(0.0)
    past = PastTargets(source, tau=0.5, interval=1, count=2)
    nn.init.constant_(source.bias, 8.0)
    past.update()
    past.update()
    assert past(torch.zeros(1, 1)).flatten().tolist() == [6.0, 4.0]
    assert isinstance(build_targets(source, 0.5, 1, 1), Target)


@pytest.mark.parametrize(("reduction", "expected"), [("mean", 2.0), ("min", 1.0)])
def test_the_reduction_comes_before_the_maximum(reduction: str, expected: float) -> None:
    # Q of two targets: (1, 2) and (3, 0): means (2, 1), minima (1, 0)
    learner = make(n_targets=2, target_reduce=reduction, policy={"hidden_sizes": []})
    for member, q in zip(learner.target.members, ((1.0, 2.0), (3.0, 0.0)), strict=True):
        for name, p in member.module.named_parameters():
            p.copy_(torch.tensor(q) if name.endswith("bias") else torch.zeros_like(p))
    batch = chain()
    target = learner.targets(batch).target.squeeze(-1)
    torch.testing.assert_close(target, batch.reward + batch.discount * expected)


@pytest.mark.parametrize("double", [False, True])
def test_dqn_learns_and_continues_with_several_targets(double: bool) -> None:
    options: dict[str, Any] = {
        "n_targets": 3,
        "double": double,
        "target_update_updates": 2,
        "learning_rate": 1e-2,
    }
    through, broken, fresh = make(**options), make(**options), make(**options)
    first = through.update(chain()).metrics["loss"]
    for _ in range(19):
        last = through.update(chain()).metrics["loss"]
    assert last < first
    for _ in range(7):
        broken.update(chain())
    fresh.load_state_dict(broken.state_dict())
    for _ in range(13):
        fresh.update(chain())
    for name, x in through.model.state_dict().items():
        assert torch.equal(x, fresh.model.state_dict()[name])


@pytest.mark.parametrize("fields", [{"noisy": True}, {"returns": "c51"}, {"returns": "iqn"}])
def test_what_cannot_be_reduced_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="one expectation") as caught:
        make(n_targets=2, **fields)
    assert caught.value.path == "n_targets"


@pytest.mark.parametrize("kind", ["sac", "td3", "tqc", "redq"])
def test_actor_critics_learn_and_continue_with_several_targets(kind: str) -> None:
    options: dict[str, Any] = {"n_targets": 2, "target_update_updates": 2, "tau": 0.5}

    def run(learner: Any, first: int, last: int) -> None:
        for k in range(first, last):
            learner.update(targets.going_on(32, torch.Generator().manual_seed(k)))

    through, broken, fresh = (targets.make(kind, **options) for _ in range(3))
    run(through, 0, 8)
    run(broken, 0, 5)
    fresh.load_state_dict(broken.state_dict())
    run(fresh, 5, 8)
    assert all(
        torch.equal(x, fresh.state_dict()[name])
        for name, x in through.state_dict().items()
        if "extra" not in name
    )


@pytest.mark.parametrize(("reduction", "expected"), [("min", 1.0), ("mean", 2.5)])
def test_critics_and_their_past_are_reduced_together(reduction: str, expected: float) -> None:
    # two critics now say 1 and 2, and said 3 and 4
    learner: Any = targets.make("td3", n_targets=2, target_reduce=reduction, target_noise=0.0)
    for member, outputs in zip(learner.q_target.members, ((1.0, 2.0), (3.0, 4.0)), strict=True):
        last = member.module.body.layers[-1]
        last.weight.zero_()
        last.bias.copy_(torch.tensor(outputs).reshape(2, 1, 1))
    rows = targets.going_on(6, torch.Generator().manual_seed(0))
    rows = rows.replace(next_inputs=rows.next_obs)
    torch.testing.assert_close(learner.value_target(rows), rows.reward + 0.9 * expected)
