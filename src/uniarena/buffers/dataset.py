"""A dataset as a buffer: nothing is added, and rows are drawn as from replay.

Rows lie episode by episode, so a window of n steps is n rows in a row; observations are where the loader put them, in
memory or in mapped files, and a sample costs what its own rows cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from uniarena.batch import Batch, Rollout, Tree, tree_leaves, tree_map
from uniarena.buffers.sequels import returns_to_go
from uniarena.buffers.spec import BufferSpec
from uniarena.buffers.window import Return, Window, summed
from uniarena.config import ConfigError, config
from uniarena.data import DataConfig, DataError, Dataset, load
from uniarena.data.config import MadeFromConfig
from uniarena.envs.spaces import describe, leaf_spaces, storage_space
from uniarena.ops.health import Worth, worth

PIECE = 16_384
"""Rows that statistics of all data are taken in at a time."""
LOOKED_AT = 4_096
"""Rows whose actions are held against their bounds when a run begins."""
RUN = 64
"""Consecutive rows of `DatasetBuffer.recent`."""


@config
class DatasetConfig(DataConfig):
    """Settings of `DatasetBuffer`: which data, how it is read, which part of it."""

    made_from: MadeFromConfig | None = None  # how a run makes the file, where it is not there

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.made_from is not None and not self.path.endswith(".npz"):
            raise ConfigError(
                f"what is recorded becomes a NumPy archive, and data.path is {self.path}",
                "made_from",
                hint="let data.path end in .npz, or leave made_from out",
            )


def misplaced(error: DataError, path: str) -> ConfigError:
    """An error about data as one of the config path that names it, which says its file and line."""
    message = f"{error.where}: {error.message}" if error.where else error.message
    return ConfigError(message, path=path, hint=error.hint)


class DatasetBuffer:
    """Uniform draws from a fixed dataset, with n-step returns.

    Args:
        cfg: which data.
        spec: of the run. `action_space` says what the data's actions mean, where the data does not say it.
        dataset: the data itself, loaded; None: it is loaded as `cfg` says.

    Attributes:
        dataset: the transitions.

    Raises:
        DataError: it cannot be read, or is not of the run's environment.
        ConfigError: fields that no dataset has are to be sampled (recurrent states).
    """

    Config: type = DatasetConfig
    gives_sequences: ClassVar[bool] = False
    fixed: ClassVar[bool] = True
    """Nothing is added: a run that learns from it steps no environment, and its clock is updates."""

    def __init__(self, cfg: DatasetConfig, spec: BufferSpec, dataset: Dataset | None = None) -> None:
        if spec.extra:
            raise ConfigError(
                f"a dataset has no {', '.join(spec.extra)} of its rows",
                path="agent.buffer.type",
                hint="choose a learner without memory",
            )
        if dataset is None:
            dataset = load(cfg, spec.observation_space, spec.action_space)
        _refuse_other_spaces(dataset, spec)
        self.cfg, self.spec, self.dataset = cfg, spec, dataset
        rows = dataset.rows
        self._reward = dataset.reward.astype(np.float32)
        self._worth = np.array([spec.gamma, 0.0], np.float32)
        self._powers = spec.gamma ** np.arange(spec.n_step + 1, dtype=np.float64)
        self._stop = np.repeat(rows.starts[1:] - 1, np.diff(rows.starts)) if spec.n_step > 1 else None
        self._to_policy = _to_policy(dataset.action_space, spec.policy_space)
        self._send = _sender(spec.device)
        self._ones: tuple[Tensor, Tensor] = (torch.ones(0), torch.ones(0))
        self._ends = np.zeros(len(dataset), bool)
        self._ends[rows.starts[1:] - 1] = True
        asked = "return_to_go" in spec.asked
        self._rest = returns_to_go(self._reward, self._ends, spec.gamma) if asked else None

    @property
    def size(self) -> int:
        """Transitions that can be sampled: all of them."""
        return len(self.dataset)

    @property
    def ready(self) -> bool:
        """Always: what has no transition is refused when it is loaded."""
        return True

    @cached_property
    def worth(self) -> Worth:
        """What returns there are in the data, discounted as the learner does."""
        return worth(self.dataset.reward, self.dataset.terminated, self._ends, self.spec.gamma)

    def describe(self) -> str:
        """One line: how much there is, which file, and where it says that it comes from."""
        data, source = self.dataset, self.dataset.source
        origin = ", ".join(f"{name} {value}" for name, value in source.origin.items() if _short(value))
        said = f" ({origin})" if origin else ""
        episodes = len(np.unique(data.rows.found))
        pieces = f" ({data.episodes:,} pieces)" if data.episodes != episodes else ""
        return f"{len(data):,} transitions in {episodes:,} episodes{pieces} of {source.path}{said}"

    def add(self, rollout: Rollout) -> None:
        """A dataset takes nothing.

        Raises:
            ValueError: the rollout has rows.
        """
        if rollout.T:
            raise ValueError(
                "a dataset is fixed and takes no experience; mix it with replay (uniarena.buffers.mix), which does."
            )

    def sample(self, generator: torch.Generator | None = None, size: int | None = None) -> Batch:
        """Transitions drawn with replacement.

        Args:
            generator: source of the random numbers, on the CPU.
            size: how many, N; None: `spec.batch_size`.

        Returns:
            `[N]` of obs, action (as the policy gives it), reward (n steps summed), next_obs, discount (γⁿ, 0 where
            terminated), terminated, weight (1), index (of the transition), episode_id, n (steps summed). With
            `spec.successors` also `known` or, where several steps are summed, `window`, and what `spec.asked` has,
            as of `ReplayBuffer.sample`.
        """
        count = size or self.spec.batch_size
        return self.at(torch.randint(len(self.dataset), (count,), generator=generator).numpy())

    def at(self, index: np.ndarray) -> Batch:
        """The transitions `[N]` with these indices, as `sample` gives them."""
        data, n, send = self.dataset, self.spec.n_step, self._send
        weight, one = self._constants(len(index))
        if self._stop is None:
            ended = data.terminated.take(index)
            result = Return(self._reward.take(index), self._worth.take(ended), ended, index)
            count = one
        else:
            steps = np.minimum(n, self._stop.take(index) - index + 1)
            count = send(steps)
            places = np.minimum(index[:, None] + np.arange(n), len(data) - 1)
            window = Window(places, self._reward[places], data.terminated[places], steps)
            result = summed(window, self._powers)
        fields: dict[str, Any] = self._observed(index, result.last)
        for name in ("reward", "discount", "terminated"):
            fields[name] = send(getattr(result, name))
        fields |= {"weight": weight, "index": send(index), "n": count}
        fields["episode_id"] = send(data.episode_id[index])
        if self.spec.asked:
            fields |= self._sequels(index, result.last)
        if self.spec.successors and self._stop is None:
            fields["known"] = send(data.rows.known[index])
        elif self.spec.successors:
            fields["window"] = self._steps(index, steps)
        return Batch._trusted((len(index),), fields)

    def observations(self) -> Iterator[Tree]:
        """All of them, piece by piece: trees of `[N, …]` tensors."""
        for start in range(0, len(self.dataset), PIECE):
            index = np.arange(start, min(start + PIECE, len(self.dataset)))
            yield tree_map(self._send, self.dataset.obs(index))

    def recent(self, steps: int) -> Batch:
        """Rows spread over the data in runs of consecutive ones, at most `steps`, always the same; nothing is drawn.

        Returns:
            `[T, B]` of obs, action, next_obs, reward, terminated, ended (the episode goes no further), valid.
        """
        data, run = self.dataset, min(RUN, len(self.dataset))
        starts = np.linspace(0, len(data) - run, max(1, min(steps, len(data)) // run)).astype(np.int64)
        index = starts + np.arange(run)[:, None]
        flat, shape = index.ravel(), index.shape
        fields = self._observed(flat, flat)
        for name, array in (
            ("reward", self._reward[flat]),
            ("terminated", data.terminated[flat]),
            ("ended", self._ends[flat]),
            ("valid", data.rows.known[flat] | data.terminated[flat]),
        ):
            fields[name] = self._send(array)
        return Batch(
            shape, {k: tree_map(lambda x: x.reshape(*shape, *x.shape[1:]), v) for k, v in fields.items()}
        )

    def reprioritise(self, index: Any, priority: Any) -> None:
        """Uniform sampling has no priorities; this is taken so that learners need not ask."""

    def set_progress(self, fraction: float) -> None:
        """Nothing here is scheduled."""

    def state_dict(self) -> dict[str, Any]:
        """What tells the data from any other; the data itself stays where it is."""
        return {"fingerprint": self.dataset.fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the same data.

        Raises:
            DataError: it is not the data that the state was saved with.
        """
        before, now = state["fingerprint"], self.dataset.fingerprint
        if before == now:
            return
        what = (
            "the files differ"
            if before["sha256"] != now["sha256"]
            else "other transitions are chosen of the same files"
        )
        raise DataError(
            f"this is not the data that the run learned from: {what} ({before['bytes']:,} bytes and "
            f"{before['transitions']:,} transitions then, {now['bytes']:,} and {now['transitions']:,} now)",
            self.dataset.source.path,
            "put the same files back, and ask for the same part of them; or train a new run",
        )

    def _observed(self, index: np.ndarray, last: np.ndarray) -> dict[str, Any]:
        """Observations and actions of transitions `[N]`, and what followed others."""
        data = self.dataset
        send = self._send
        return {
            "obs": tree_map(send, data.obs(index)),
            "action": tree_map(send, self._to_policy(data.action(index))),
            "next_obs": tree_map(send, data.next_obs(last)),
        }

    def _sequels(self, index: np.ndarray, last: np.ndarray) -> dict[str, Any]:
        """What a learner asked to know of the rows after transitions `[N]`, whose windows end at `last`."""
        data, found = self.dataset, dict[str, Any]()
        if "next_action" in self.spec.asked:
            action = self._to_policy(data.action(np.minimum(last + 1, len(data) - 1)))
            found["next_action"] = tree_map(self._send, action)
            found["followed"] = self._send(~self._ends[last])
        if self._rest is not None:
            found["return_to_go"] = self._send(self._rest[index])
        return found

    def _steps(self, index: np.ndarray, steps: np.ndarray) -> dict[str, Any]:
        """The steps of windows `[N, n]`; behind a window's end, copies of its last."""
        count, n = len(index), self.spec.n_step
        grid = (index[:, None] + np.minimum(np.arange(n), steps[:, None] - 1)).ravel()
        fields = self._observed(grid, grid)
        fields["valid"] = self._send((np.arange(n) < steps[:, None]).ravel() & self.dataset.rows.known[grid])
        return {
            name: tree_map(lambda leaf: leaf.reshape(count, n, *leaf.shape[1:]), tree)
            for name, tree in fields.items()
        }

    def _constants(self, size: int) -> tuple[Tensor, Tensor]:
        """Ones `[N]`: float32 for weights, int64 for steps (nobody can write into them)."""
        if len(self._ones[0]) != size:
            device = self.spec.device
            ones = torch.ones((), device=device), torch.ones((), dtype=torch.int64, device=device)
            self._ones = ones[0].expand(size), ones[1].expand(size)
        return self._ones


def _sender(device: torch.device) -> Callable[[np.ndarray], Tensor]:
    """Array → tensor on a device."""
    if device.type == "cpu":
        return torch.from_numpy
    return lambda array: torch.from_numpy(array).to(device)


def doubts(buffer: Any) -> list[str]:
    """What was left out of the data that a buffer holds, or concluded of it, or is clipped, one sentence each; also of
    a mixture.
    """
    held = [part.dataset for part in getattr(buffer, "buffers", [buffer]) if isinstance(part, DatasetBuffer)]
    return [
        f"{data.source.path}: {text}" for data in held for text in [*data.account.doubts(), *_beyond(data)]
    ]


def _beyond(data: Dataset) -> Iterator[str]:
    """A sentence for every part of the actions with values beyond its bounds, of rows spread over the data."""
    places = np.linspace(0, len(data) - 1, min(LOOKED_AT, len(data))).astype(np.int64)
    pairs = zip(leaf_spaces(data.action_space), tree_leaves(data.action(places)), strict=True)
    for (name, space), rows in pairs:
        if not isinstance(space, spaces.Box):
            continue
        slack = 1e-5 * np.maximum(1.0, np.abs(rows))  # of values that were rounded
        out = ((rows < space.low - slack) | (rows > space.high + slack)).reshape(len(rows), -1)
        if out.any():
            worst = float(np.abs(rows.reshape(len(rows), -1)[out]).max())
            which = f" ({name})" if name else ""
            yield (
                f"{out.any(axis=1).mean():.0%} of the actions looked at{which} are beyond the bounds "
                f"{space.low.min():g} to {space.high.max():g}, by size up to {worst:g}. They are clipped, as the "
                "environment does; if they are in other units, scale them."
            )


def _refuse_other_spaces(dataset: Dataset, spec: BufferSpec) -> None:
    pairs = (
        ("observations", dataset.observation_space, storage_space(spec.observation_space)),
        ("actions", dataset.policy_space, spec.policy_space),
    )
    for what, found, wanted in pairs:
        shapes = [
            [(path, leaf.shape, leaf.dtype) for path, leaf in leaf_spaces(each)] for each in (found, wanted)
        ]
        if shapes[0] != shapes[1]:
            raise DataError(
                f"its {what} are {describe(found)}, and the run's are {describe(wanted)}",
                dataset.source.path,
                "check that data and environment belong together, wrappers included",
            )


def _to_policy(env_space: Space[Any], policy_space: Space[Any]) -> Callable[[Tree], Tree]:
    """From stored actions to the policy's own: clipped to the bounds, as the environment does; stretched to [−1, 1]
    where the policy acts there.
    """
    if isinstance(env_space, spaces.Dict):
        members = {key: _to_policy(child, policy_space[key]) for key, child in env_space.spaces.items()}  # type: ignore[index]
        return lambda action: {key: apply(action[key]) for key, apply in members.items()}
    if isinstance(env_space, spaces.Tuple):
        pairs = zip(env_space.spaces, policy_space.spaces, strict=True)  # type: ignore[attr-defined]
        parts = tuple(_to_policy(child, own) for child, own in pairs)
        return lambda action: tuple(apply(leaf) for apply, leaf in zip(parts, action, strict=True))
    if not isinstance(env_space, spaces.Box) or not isinstance(policy_space, spaces.Box):
        return lambda action: action
    low, high = env_space.low.astype(np.float32), env_space.high.astype(np.float32)
    same = np.array_equal(low, policy_space.low) and np.array_equal(high, policy_space.high)
    if same or not (np.isfinite(low).all() and np.isfinite(high).all()):
        return lambda action: np.clip(action, low, high)
    half = np.where(high > low, (high - low) / 2, 1.0).astype(np.float32)
    return lambda action: (np.clip(action, low, high) - low) / half - 1


def _short(value: Any) -> bool:
    return isinstance(value, str | int | float) and len(str(value)) <= 60
