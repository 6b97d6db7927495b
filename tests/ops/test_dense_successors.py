"""Rollouts that give every successor: only those of ends cost the value another look."""

import torch
from torch import Tensor

from uniarena.batch import Batch, Rollout
from uniarena.ops.returns import next_values


def _rollout() -> Rollout:
    """Two columns of three steps: column 0 ends at row 1, column 1 with the last row."""
    obs = torch.tensor([[1.0, 10.0], [2.0, 11.0], [0.0, 12.0]])[..., None]
    successors = torch.tensor([[2.0, 11.0], [3.0, 12.0], [0.5, 13.0]])[..., None]
    terminated = torch.tensor([[False, False], [True, False], [False, False]])
    truncated = torch.tensor([[False, False], [False, False], [False, True]])
    first = torch.tensor([[True, True], [False, False], [True, False]])
    rows = Batch(
        (3, 2),
        obs=obs,
        next_obs=successors,
        reward=torch.ones(3, 2),
        terminated=terminated,
        truncated=truncated,
        valid=torch.ones(3, 2, dtype=torch.bool),
        is_first=first,
    )
    last = Batch((2,), obs=torch.tensor([[0.5], [20.0]]), is_first=torch.tensor([False, True]))
    return Rollout(rows, Batch((2,), is_first=first[0]), last)


def test_values_are_those_of_the_true_successors() -> None:
    asked = 0

    def value(obs: Tensor) -> Tensor:
        nonlocal asked
        asked += len(obs)
        return obs[:, 0] * 100

    found, following = next_values(value, _rollout())
    assert found.tolist() == [[100.0, 1000.0], [200.0, 1100.0], [0.0, 1200.0]]
    assert following.tolist() == [[200.0, 1100.0], [300.0, 1200.0], [50.0, 1300.0]]
    assert asked == 6 + 2 + 2  # the rows, what follows the last ones, the two ends
