"""Datasets of our own: a recipe is trained, and what its agents do is recorded. The same section, the same data."""

from __future__ import annotations

import glob
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from uniarena import assembly, checkpoint
from uniarena.agent import Agent
from uniarena.batch import Batch, Tree, tree_map
from uniarena.buffers.dataset import DatasetConfig
from uniarena.buffers.demonstrations import DemonstrationsConfig
from uniarena.config import ConfigError, Experiment, component, load, parse
from uniarena.config.assembly import REGULARIZERS, of_data, regularizers
from uniarena.config.section import join
from uniarena.data import Episode, Recorder
from uniarena.data import load as load_data
from uniarena.data.audit import audit
from uniarena.data.config import MadeFromConfig
from uniarena.data.report import write
from uniarena.explorers.sample import SampleExplorer
from uniarena.run.folder import CHECKPOINTS, read_result
from uniarena.run.recipes import keeps_nothing, refuse_unfit, told_otherwise
from uniarena.run.recording import env_of, record_data, stored
from uniarena.run.saved import UNUSED_SEEDS, evaluate
from uniarena.run.single import train_one

log = logging.getLogger("uniarena")

AGENTS = 10
"""Of a training, kept at equal distances: one of them is medium, one is the expert."""
EVALUATED = 10
"""Episodes by which agents are compared."""
EPSILON = 0.1
"""Chance of a random action at each step of an agent whose policy draws none by itself: else it would do one thing."""
PARTS = {
    "random": ("random",),
    "medium": ("medium",),
    "expert": ("expert",),
    "mixed": ("random", "medium", "expert"),
}


@dataclass(frozen=True)
class Making:
    """A dataset that can be made.

    Attributes:
        path: the file. Its card lies beside it, and so does the run that was recorded, for other sets of the recipe.
        cfg: how.
        where: the section that says it, for errors.
    """

    path: Path
    cfg: MadeFromConfig
    where: str = "data"

    def make(self, quiet: bool = False) -> Path:
        """Train, record and write a card, unless the file is there → the file.

        Raises:
            ConfigError: the recipe is none, learns from data itself, or has no buffer whose contents could be taken.
            KeyboardInterrupt: the training was interrupted. Made again, it goes on.
        """
        if self.path.exists():
            self._compare()
            return self.path
        log.warning(
            "%s is not there: it is made from the recipe %s (%s)", self.path, self.cfg.recipe, self.cfg.kind
        )
        try:
            run = self._run(quiet)
            with checkpoint.locked(run):  # nobody else records it now
                if not self.path.exists():
                    self._write(Trained(run, self.cfg.seed))
        except KeyboardInterrupt as error:
            error.add_note(
                f"{self.path} is not made yet. Give the same command again: it goes on with making it, and then trains"
            )
            raise
        return self.path

    def check(self, run: Experiment) -> None:
        """Refuse what cannot be made for a run, before anything is trained.

        Raises:
            ConfigError: as of `make`; or what is made would not fit the run's environment.
        """
        if not self.path.exists():
            refuse_unfit(self.exp, self.cfg, self.where, run)

    def _compare(self) -> None:
        """Warn where the file that is there says that it was made otherwise."""
        try:
            trained = self.cfg.env_steps or self.exp.training.total_timesteps
        except ConfigError:  # the recipe is not at hand any more
            trained = None
        if differs := told_otherwise(self.path, self.cfg, trained):
            log.warning(
                "%s is there already and was made otherwise than %s.made_from says: %s. The file is used as it is. To "
                "have what the section says, name another path, or delete the file",
                self.path,
                self.where,
                "; ".join(differs),
            )

    def _write(self, trained: Trained) -> None:
        """Record agents of a run that nobody else records now, and write a card."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".making-{trained.run.name}-"
        for place in self.path.parent.glob(f"{glob.escape(prefix)}*"):  # of one that was killed
            if re.fullmatch(r"\w+", place.name.removeprefix(prefix)):
                shutil.rmtree(place, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=prefix) as folder:
            part = Path(folder) / self.path.name
            origin = self._replay(trained, part) if self.cfg.kind == "replay" else self._played(trained, part)
            card = _card(part, origin)
            shutil.move(card, self.path.with_suffix(".md"))
            part.replace(self.path)  # last, so that what is there is whole

    # -- training ----------------------------------------------------------------------------------------------------
    @cached_property
    def exp(self) -> Experiment:
        """The recipe, so that agents of it are kept at equal distances, and not evaluated on the way."""
        cfg, seed = self.cfg, f"experiment.seed={self.cfg.seed}"
        exp = load([cfg.recipe], [seed])
        if exp.stages:
            said = f"{cfg.recipe} has several stages"
            raise ConfigError(said, f"{self.where}.made_from.recipe", hint="name a recipe without stages")
        if exp.data is not None:
            said = f"{cfg.recipe} learns from data itself, and steps no environment that could be recorded"
            raise ConfigError(
                said, f"{self.where}.made_from.recipe", hint="name a recipe that learns from experience"
            )
        total = cfg.env_steps or exp.training.total_timesteps
        every = max(1, total // AGENTS)
        training = {
            "total_timesteps": total,
            "save_every_env_steps": every,
            "eval_every_env_steps": total,
            "keep_checkpoints": 2 * AGENTS,
            "n_eval_episodes": 1,
            "max_wall_time": "null",
        }
        return load([cfg.recipe], [seed, *(f"training.{name}={value}" for name, value in training.items())])

    @property
    def run_folder(self) -> Path:
        """Of the training, beside the data."""
        name = self.cfg.recipe.replace("\\", "/").removesuffix(".yaml").replace("/", "-").strip(".-")
        run = f"{name}-{self.exp.training.total_timesteps}-seed-{self.cfg.seed}"
        return self.path.parent / "runs" / run

    def _run(self, quiet: bool) -> Path:
        exp, folder = self.exp, self.run_folder
        found = read_result(folder)
        if found is None or found.resumable:
            assembly.check(exp)
            ensure_data(exp, quiet)  # of demonstrations
            result = train_one(exp, folder, resume_if_exists=True, quiet=quiet)
            if result.resumable:
                raise KeyboardInterrupt
        return folder

    # -- recording ---------------------------------------------------------------------------------------------------
    def _origin(self, trained: Trained, **more: Any) -> dict[str, Any]:
        cfg = self.cfg
        return {
            "made_by": "uniarena",
            "kind": cfg.kind,
            "recipe": cfg.recipe,
            "seed": cfg.seed,
            "trained_env_steps": self.exp.training.total_timesteps,
            **more,
            "agents": {path.name: round(earned, 2) for path, earned in trained.returns.items()},
        }

    def _played(self, trained: Trained, target: Path) -> dict[str, Any]:
        """Episodes of one kind of agent, or equally many of each."""
        kinds = PARTS[self.cfg.kind]
        low = self._random_return(trained, target.parent)
        parts, files = [], []
        for k, kind in enumerate(kinds):
            episodes = self.cfg.episodes // len(kinds) + (k < self.cfg.episodes % len(kinds))
            if not episodes:
                continue
            agent = trained.medium(low) if kind == "medium" else trained.best
            path, who = self._record(agent, kind, episodes, target.parent / f"{kind}.npz", k)
            files.append(path)
            parts.append({"part": kind, "episodes": episodes, "who": who})
        origin = self._origin(trained, parts=parts, random_return=round(low, 2))
        _join(files, origin, target)
        return origin

    def _record(self, agent: Path, kind: str, episodes: int, target: Path, k: int) -> tuple[Path, str]:
        """Episodes of an agent, or of random actions in its environment → the file, and who acted."""
        seed = self.cfg.seed + UNUSED_SEEDS * (k + 2)  # that no training or evaluation has
        sampled = isinstance(Agent.load(agent, trust=True).explorer, SampleExplorer)
        epsilon = 1.0 if kind == "random" else 0.0 if sampled else EPSILON
        who = f"checkpoint {agent.name}, " + (
            "samples of its policy"
            if sampled
            else f"the mode of its policy, and with probability {EPSILON} any action"
        )
        record_data(
            agent, episodes, epsilon=epsilon, deterministic=not sampled, out=target, seed=seed, trust=True
        )
        return target, "uniform actions" if kind == "random" else who

    def _random_return(self, trained: Trained, folder: Path) -> float:
        path, _ = self._record(trained.best, "random", EVALUATED, folder / "measured.npz", 5)
        return float(load_data(path).returns.mean())

    def _replay(self, trained: Trained, target: Path) -> dict[str, Any]:
        """What the learner's buffer holds when training ends."""
        last, exp = trained.agents[-1], self.exp
        env = assembly.build_env(exp, training=True)
        try:
            buffer = assembly.build_agent(exp, env).buffer
            if not hasattr(buffer, "recent"):
                raise keeps_nothing(self.cfg, self.where)
            buffer.load_state_dict(checkpoint.load(last, only=("buffer",))[0]["buffer"])
            rows = buffer.recent(buffer.size + 1)
            origin = self._origin(
                trained,
                who="the learner's own experience, as its buffer held it at the end",
                random_return=round(self._random_return(trained, target.parent), 2),
            )
            recorder = Recorder(env.observation_space, env.action_space, env_of(exp), origin)
            flat = tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows.action)
            for episode in pieces(rows, stored(env, flat)):
                recorder.add(episode)
        finally:
            env.close()
        recorder.save(target)
        return origin


@dataclass(frozen=True)
class Trained:
    """A run that is over, and what its agents earn."""

    run: Path
    seed: int

    @cached_property
    def agents(self) -> list[Path]:
        """Its numbered checkpoints, from the first to the last."""
        found = [path for path in (self.run / CHECKPOINTS).iterdir() if path.name.isdigit()]
        return sorted(found, key=lambda path: int(path.name))

    @cached_property
    def returns(self) -> dict[Path, float]:
        """Mean return of the mode of each agent's policy."""
        seed = self.seed + UNUSED_SEEDS
        return {path: evaluate(path, EVALUATED, seed=seed, trust=True).return_mean for path in self.agents}

    @property
    def best(self) -> Path:
        """The expert: of equal ones the first."""
        return max(self.agents, key=self.returns.__getitem__)

    def medium(self, low: float) -> Path:
        """Whose return is nearest to the middle of `low`, that of random actions, and the expert's."""
        middle = (low + self.returns[self.best]) / 2
        return min(self.agents, key=lambda path: abs(self.returns[path] - middle))


def data_of(exp: Experiment) -> list[tuple[str, DatasetConfig]]:
    """Which data a run learns from: its own, demonstrations, that of its regularisers; each with its config path.
    Buffers of your own are left out.

    Raises:
        ConfigError: a section of data is wrong.
    """
    found: list[tuple[str, Any]] = []
    if exp.data is not None:
        found.append(("data", component("buffer", of_data(exp.data, exp.learner["type"]), "data")[1]))
    shown = exp.agent.buffer.get("demonstrations") if exp.agent.buffer else None
    if shown is not None:
        where = "agent.buffer.demonstrations"
        found.append((where, parse(DemonstrationsConfig, shown, where)))
    for index, section in enumerate(regularizers(exp)):
        where = join(REGULARIZERS, index)
        found.append(
            (join(where, "data"), getattr(component("regularizer", section, where)[1], "data", None))
        )
    return [(where, cfg) for where, cfg in found if isinstance(cfg, DatasetConfig)]


def makings(exp: Experiment) -> list[Making]:
    """How the data of a run is made; none where its config does not say, or there is no data."""
    ways = [(where, cfg, cfg.made_from) for where, cfg in data_of(exp)]
    return [Making(Path(cfg.path), how, where) for where, cfg, how in ways if how is not None]


def ensure_data(exp: Experiment, quiet: bool = False) -> None:
    """Make the data of a run, where its config says how (`made_from`) and the file is not there. All of it is checked
    before any is made.
    """
    with exp.locating():
        wanted = makings(exp)
        for each in wanted:
            each.check(exp)
        for each in wanted:
            each.make(quiet)


def pieces(rows: Batch, action: Tree) -> Iterator[Episode]:
    """Consecutive rows of replay as episodes, column by column.

    A piece ends where its episode did, where the successor of a row is not known, and where the buffer ends; what did
    not terminate is truncated.

    Args:
        rows: `[T, B]`, as a replay buffer's `recent` gives them.
        action: `[T · B, …]` of them, as recordings have them.
    """
    steps, columns = rows.shape
    valid, ended = rows.valid.cpu().numpy(), rows.ended.cpu().numpy()
    for b in range(columns):
        start = 0
        for t in range(steps):
            if not valid[t, b]:
                yield from _piece(rows, action, slice(start, t), b)
                start = t + 1
            elif ended[t, b] or t == steps - 1:
                yield from _piece(rows, action, slice(start, t + 1), b)
                start = t + 1


def _piece(rows: Batch, action: Tree, part: slice, b: int) -> Iterator[Episode]:
    count = part.stop - part.start
    if not count:
        return
    column = rows[part, b]
    places = np.arange(part.start, part.stop) * rows.shape[1] + b
    terminated, truncated = column.terminated.cpu().numpy(), np.zeros(count, bool)
    truncated[-1] = not terminated[-1]

    def with_last(obs: Any, after: Any) -> np.ndarray:
        return np.concatenate([obs.cpu().numpy(), after[-1:].cpu().numpy()])

    yield Episode(
        tree_map(with_last, column.obs, column.next_obs),
        tree_map(lambda leaf: leaf[places], action),
        column.reward.cpu().numpy().astype(np.float64),
        terminated,
        truncated,
        True,
    )


def _join(files: Iterable[Path], origin: dict[str, Any], target: Path) -> None:
    """One recording of several of the same environment."""
    recorder = None
    for data in map(load_data, files):
        recorder = recorder or Recorder(data.observation_space, data.action_space, data.source.env, origin)
        for episode in data:
            recorder.add(episode)
    assert recorder is not None
    recorder.save(target)


def _card(path: Path, origin: dict[str, Any]) -> Path:
    """A page about the set, beside it: how it was made, and its audit."""
    page = write(audit(load_data(path, lazy=True)), path.with_suffix(".md"))
    how = f"## How it was made\n\n```json\n{json.dumps(origin, indent=2)}\n```\n\n## Warnings"
    page.write_text(page.read_text(encoding="utf-8").replace("## Warnings", how, 1), encoding="utf-8")
    return page
