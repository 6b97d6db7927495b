"""Record what a run's agent does in its environment, as data for learning offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

import uniarena
from uniarena import assembly, checkpoint
from uniarena.batch import Tree, tree_leaves, tree_map
from uniarena.config import ConfigError, Experiment, to_mapping
from uniarena.data import Episode, Recorder
from uniarena.data.writing import refuse_taken, refuse_unwritable
from uniarena.envs.protocol import Env, Step
from uniarena.envs.spaces import MASK
from uniarena.explorers.actor import untouched
from uniarena.explorers.uniform import UniformActions
from uniarena.run.folder import owner
from uniarena.run.saved import UNUSED_SEEDS, load_with_config, locate
from uniarena.sampling.evaluation import refuse_misfit
from uniarena.seeding import preserved_globals, seed_globals

COLUMNS = 16
"""Environments that are stepped side by side, at most."""
LONGEST = 100_000
"""Steps after which an episode without an end is cut off: truncated, with its true last observation."""


def record_data(
    run: str | Path,
    episodes: int,
    *,
    epsilon: float = 0.0,
    deterministic: bool = True,
    out: str | Path | None = None,
    seed: int | None = None,
    trust: bool = False,
    secrets: Sequence[str] = (),
) -> tuple[Path, Recorder]:
    """Record episodes of a run's agent (its best checkpoint), or of a checkpoint's, in its own environment.

    Rewards are the environment's own, before wrappers clipped or scaled them; actions are those that it was given.

    Args:
        epsilon: chance of a uniformly random action at each step, whatever the policy says.
        deterministic: the mode of the policy; else samples.
        out: the file; None: `data/<episodes>-episodes.npz` in the run's folder, or a name that says ε and seed too.
        seed: of environments and draws; None: one that training never uses.

    Returns:
        the file, and what was written into it.

    Raises:
        CheckpointError: as `evaluate`.
        ConfigError: `epsilon` is no probability, actions without bounds cannot be drawn, or the run has no environment.
        DataError: something is at `out` already, or nothing can be written there; before anything is played.
    """
    if not 0.0 <= epsilon <= 1.0:
        raise ConfigError(f"epsilon is {epsilon}; expected a probability, 0 to 1")
    if episodes < 1:
        raise ConfigError(f"{episodes} episodes were asked for; expected 1 or more")
    source = locate(run)
    agent, exp = load_with_config(run, trust, secrets)
    if exp.environment.id is None:
        raise ConfigError(
            "this run learned from data and has no environment that its agent could be recorded in",
            "environment.id",
            hint="record a run with an environment, or go on with the data that this one learned from",
        )
    start = exp.experiment.seed + UNUSED_SEEDS if seed is None else seed
    target = (
        Path(out) if out is not None else _default(owner(source), episodes, epsilon, deterministic, start)
    )
    refuse_taken(target)
    refuse_unwritable(target)
    env = assembly.build_env(exp, min(episodes, COLUMNS), run_dir=owner(source))
    try:
        mode = "deterministic" if deterministic else "stochastic"
        origin = {**_origin(source, exp), "policy": mode, "epsilon": epsilon, "seed": start}
        recorder = Recorder(env.observation_space, env.action_space, env_of(exp), origin)
        Play(agent, env, episodes, epsilon, deterministic, start).into(recorder)
    finally:
        env.close()
    return recorder.save(target), recorder


def _default(folder: Path, episodes: int, epsilon: float, deterministic: bool, seed: int) -> Path:
    parts = [f"{episodes}-episodes", f"seed-{seed}"]
    parts += [f"epsilon-{epsilon:g}"] if epsilon else []
    parts += [] if deterministic else ["stochastic"]
    return folder / "data" / f"{'_'.join(parts)}.npz"


def env_of(exp: Experiment) -> dict[str, Any]:
    """What a recording says of its environment."""
    section = to_mapping(exp)["environment"]  # without secrets
    return {
        name: section[name] for name in ("id", "kwargs", "wrappers", "max_episode_steps") if name in section
    }


def _origin(source: Path, exp: Experiment) -> dict[str, Any]:
    """Which agent: its run, its checkpoint, what it learned with and for how long."""
    counters = checkpoint.read_meta(source).get("counters") or {}
    return {
        "made_by": "uniarena data record",
        "version": uniarena.__version__,
        "run": owner(source).resolve().name,
        "checkpoint": source.name,
        "learner": str(exp.learner.get("type")),
        "trained_env_steps": counters.get("env_steps"),
    }


class Play:
    """An agent in an environment until every column has recorded its share of the episodes.

    Columns have fixed shares, so that short episodes are not preferred.

    Args:
        agent, env: that fit each other.
        episodes: of all columns together.
        epsilon: chance of a uniformly random action at each step.
        deterministic: the mode of the policy; else samples.
        seed: of the environment's reset and of all draws.
    """

    def __init__(
        self, agent: Any, env: Env, episodes: int, epsilon: float, deterministic: bool, seed: int
    ) -> None:
        refuse_misfit(agent, env)
        self.agent, self.env, self.deterministic, self.seed, self.epsilon = (
            agent,
            env,
            deterministic,
            seed,
            epsilon,
        )
        policy_space = env.action_map.policy_space
        self.random = UniformActions(policy_space, "--epsilon") if epsilon else None
        self.left: np.ndarray = np.zeros(0, np.int64)
        self.episodes = episodes
        self.open: list[list[tuple[Any, ...]]] = []

    def into(self, recorder: Recorder) -> None:
        """Play and record."""
        agent, env = self.agent, self.env
        with preserved_globals(), untouched(agent.actor):
            seed_globals(self.seed)
            obs = tree_map(_copied, env.reset(seed=self.seed))
            columns = len(tree_leaves(obs)[0])
            self.left = np.full(columns, self.episodes // columns) + (
                np.arange(columns) < self.episodes % columns
            )
            self.open = [[] for _ in range(columns)]
            generator = torch.Generator(device=agent.device)
            generator.manual_seed(self.seed)
            state = agent.actor.initial_state(columns)
            is_first = torch.ones(columns, dtype=torch.bool, device=agent.device)
            while self.left.any():
                tensors = tree_map(lambda leaf: _to_input(leaf, agent.device), obs)
                action, state = agent.actor.pick(tensors, state, is_first, self.deterministic, generator)
                action = self._disturbed(action, tensors, generator)
                given = tree_map(lambda a: a.to(env.device) if env.tensor else _copied(a), action)
                step = env.step(given)
                cut = self._take(obs, stored(env, action), step, recorder)
                obs, is_first = (
                    tree_map(_copied, step.obs),
                    torch.as_tensor(_copied(step.is_first), device=agent.device),
                )
                if cut.any():
                    mask = torch.as_tensor(cut, device=env.device) if env.tensor else cut
                    obs = tree_map(_copied, env.reset(mask=mask))
                    is_first = is_first | torch.as_tensor(cut, device=agent.device)

    def _disturbed(self, action: Tree, obs: Tree, generator: torch.Generator) -> Tree:
        """The actions, each one random with probability ε."""
        if self.random is None:
            return action
        columns = len(tree_leaves(action)[0])
        noise = tree_map(lambda leaf: leaf[0], self.random.noise(1, columns, generator))
        mask = obs.get(MASK) if isinstance(obs, dict) else None
        other = self.random.act(noise, mask)
        swap = torch.rand(columns, generator=generator, device=generator.device) < self.epsilon
        return tree_map(
            lambda own, drawn: torch.where(swap.reshape(-1, *[1] * (own.ndim - 1)), drawn.to(own.dtype), own),
            action,
            other,
        )

    def _take(self, obs: Tree, action: Tree, step: Step, recorder: Recorder) -> np.ndarray:
        """Keep one step of every column → columns `[B]` whose episode must be cut off."""
        columns = len(self.left)
        valid = np.ones(columns, bool) if step.valid is None else _copied(step.valid)
        lost = np.zeros(columns, bool) if step.lost is None else _copied(step.lost)
        reward = _copied(step.info.get("raw_reward", step.reward))
        terminated, truncated = _copied(step.terminated), _copied(step.truncated)
        cut = np.zeros(columns, bool)
        for b in range(columns):
            if lost[b]:  # broke off with its simulator: another one is played in its place
                self.open[b] = []
            elif valid[b]:
                self.open[b].append((row_of(obs, b), row_of(action, b), reward[b], terminated[b]))
                cut[b] = len(self.open[b]) >= LONGEST and not (terminated[b] or truncated[b])
                if terminated[b] or truncated[b] or cut[b]:
                    self._finish(b, bool(truncated[b]) or bool(cut[b]), self._final(step, b), recorder)
        return cut

    def _final(self, step: Step, b: int) -> Tree | None:
        """The observation that an episode ended with; None where the simulator loses it."""
        if step.next_obs is not None:
            return row_of(tree_map(_copied, step.next_obs), b)
        if step.final is not None:
            place = np.flatnonzero(_copied(step.final.index) == b)
            if len(place):
                return row_of(tree_map(_copied, step.final.obs), int(place[0]))
        ended = bool(_copied(step.terminated)[b] or _copied(step.truncated)[b])
        return None if ended else row_of(tree_map(_copied, step.obs), b)

    def _finish(self, b: int, truncated: bool, final: Tree | None, recorder: Recorder) -> None:
        rows, self.open[b] = self.open[b], []
        if not self.left[b]:
            return
        self.left[b] -= 1
        last = rows[-1][0] if final is None else final
        flags = np.zeros((2, len(rows)), bool)
        flags[:, -1] = rows[-1][3], truncated
        recorder.add(
            Episode(
                tree_map(lambda *leaves: np.stack(leaves), *[row[0] for row in rows], last),
                tree_map(lambda *leaves: np.stack(leaves), *[row[1] for row in rows]),
                np.array([row[2] for row in rows], np.float64),
                flags[0],
                flags[1],
                final is not None,
            )
        )


def stored(env: Env, action: Tree) -> Tree:
    """The environment's actions with classes counted from 0."""
    return _from_zero(env.action_space, tree_map(_copied, env.action_map(action)))


def _from_zero(space: Space[Any], action: Tree) -> Tree:
    if isinstance(space, spaces.Dict):
        return {key: _from_zero(child, action[key]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_from_zero(child, part) for child, part in zip(space.spaces, action, strict=True))
    start = getattr(space, "start", None)
    return action if start is None else action - start


def row_of(tree: Tree, b: int) -> Tree:
    """Entry `b` of every leaf."""
    return tree_map(lambda leaf: leaf[b], tree)


def _copied(leaf: Any) -> np.ndarray:
    return leaf.detach().cpu().numpy().copy() if isinstance(leaf, Tensor) else np.array(leaf)


def _to_input(leaf: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.as_tensor(leaf, device=device)
    return tensor.float() if tensor.dtype == torch.float64 else tensor
