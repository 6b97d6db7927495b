"""The sections of a config, their keys and defaults. A component's keys are declared beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from uniarena.config.errors import ConfigError, Location
from uniarena.config.fields import Between, config
from uniarena.config.guard import GuardConfig
from uniarena.config.reference import OF_DATA, Reference, named
from uniarena.config.section import Section, find

Count = Annotated[int, Between(1)]

UPDATES = 100_000
"""Length of a run that learns from data, where none is given."""


def _loggers() -> tuple[Section, ...]:
    return Section({"type": "jsonl"}), Section({"type": "tensorboard"})


@config
class ExperimentConfig:
    """What the run is called and where it is kept."""

    name: str | None = None  # part of the run's id; by default the algorithm and the environment
    project: str | None = None  # groups runs in the run folder
    seed: Annotated[int, Between(0, 2**32 - 1)] = 0  # every random stream is derived from it
    run_dir: str | None = None  # the run's folder itself; by default a new one under runs/
    tags: tuple[str, ...] = ()  # free words to find the run by
    notes: str = ""  # free text kept with the run
    loggers: tuple[Section, ...] = field(default_factory=_loggers)  # where figures go


@config
class WorkersConfig:
    """Worker processes of `vectorization: async`."""

    processes: Count | None = None  # processes that share the environments; null: one for each
    timeout_s: Annotated[float, Between(0, above=True)] | None = 600.0  # seconds to an answer; null: no limit
    on_fault: Literal["stop", "restart"] = "stop"  # what follows where a worker raises, ends or hangs
    restarts: Count = 5  # of one worker within restart_window, before the run stops
    restart_window: Count = 10_000  # steps of a worker within which restarts are counted


@config
class EnvironmentConfig:
    """Which environment, how many, and what is wrapped around it."""

    id: Any = None  # a Gymnasium id, an import path package.module:Name, or from Python a class or a factory
    num_envs: Count = 1  # environment streams, whatever number of processes they run in
    vectorization: Literal["auto", "serial", "sync", "async", "native", "envpool", "tensor"] = (
        "auto"  # how they run
    )
    workers: WorkersConfig | None = None  # settings of the processes of vectorization: async
    kwargs: dict[str, Any] = field(default_factory=dict)  # arguments of the environment itself
    wrappers: tuple[Section, ...] = ()  # from the innermost to the outermost
    action_mask: str = "auto"  # auto, info, none, or the key of the observation that holds the mask
    max_episode_steps: Count | None = None  # time limit; by default the environment's own

    def __post_init__(self) -> None:
        if self.workers is not None and self.vectorization != "async":
            raise ConfigError(
                f"these are settings of worker processes, and vectorization is {self.vectorization}",
                "workers",
                hint="add `vectorization: async` to environment, or remove this section",
            )


@config
class SamplingConfig:
    """Who steps the environments, and when."""

    type: Literal["local", "pipelined"] = "local"  # in the learner's process, or in one beside it
    lag: Literal["free"] | Annotated[int, Between(1, 1)] = (
        1  # pipelined: chunks that experience is behind; free: as few as there are, and no run repeats
    )
    producers: Count = 1  # pipelined: processes that each step a part of the environments
    timeout_s: Annotated[float, Between(0, above=True)] | None = (
        600.0  # pipelined: seconds without a step; null: no limit
    )

    def __post_init__(self) -> None:
        if self.type == "local" and self.producers != 1:
            raise ConfigError(
                f"{self.producers} producer processes, but `local` steps the environments in the learner's process",
                "producers",
                hint="add `type: pipelined`, or remove the key",
            )
        if self.type == "local" and self.lag != 1:
            raise ConfigError(
                "experience that is sampled in the learner's process is never behind",
                "lag",
                hint="add `type: pipelined`, or remove the key",
            )


@config
class InitFromConfig:
    """The agent that one starts as."""

    path: str  # a run, or one of its checkpoints
    take: Literal["networks", "all"] = (
        "networks"  # networks and statistics, which must fit; all: of these, targets, explorer and, where the
    )
    # learner is the same, its optimisers and counts whatever fits, and a line says what did not
    sha256: str | None = None  # of that checkpoint's manifest: another one is refused. Stages write it down


@config
class AgentConfig:
    """The parts of the agent beside its learner. Each section holds the keys of the component it names."""

    policy: Section = field(default_factory=Section)  # network, hidden_sizes, activation, …
    value: Section = field(default_factory=Section)  # what it does not set is taken from policy
    explorer: Section | None = None  # by default the learner's
    intrinsic: tuple[Section, ...] = ()  # bonuses added to the reward, such as rnd
    buffer: Section | None = None  # by default the learner's
    memory: Section | None = None  # recurrent or attention memory of the networks; by default none
    init_from: str | InitFromConfig | None = None  # a run or checkpoint whose networks the agent starts with


@config
class TrainingConfig:
    """How long to train, how often to look, on what hardware."""

    total_timesteps: Count = 1_000_000  # environment steps of the whole run, over all environments
    total_updates: Count | None = (
        None  # updates of the whole run where it learns from data, and steps no environment; null: 100,000
    )
    log_interval: Count | None = None  # optimisation epochs between log lines
    save_interval: Count | None = None  # optimisation epochs between checkpoints
    eval_interval: Count | None = None  # optimisation epochs between evaluations
    log_every_env_steps: Count | None = None  # environment steps between log lines
    save_every_env_steps: Count | None = None  # environment steps between checkpoints
    eval_every_env_steps: Count | None = None  # environment steps between evaluations
    n_eval_episodes: Count = 10  # episodes of one evaluation
    reference: Reference | str | None = (
        None  # returns that make 0 and 100 of a score: two numbers, d4rl/NAME, or data (its card)
    )
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps, xpu
    threads: Literal["auto"] | Annotated[int, Between(1, 1024)] = (
        "auto"  # threads of torch in the main process
    )
    max_wall_time: Annotated[float, Between(0, above=True)] | None = None  # seconds, or text such as 1h30m
    keep_checkpoints: Count = 5  # newest checkpoints kept; the best one is kept besides
    guard: GuardConfig = GuardConfig()  # what becomes of NaN, infinite and huge numbers; a rule alone will do

    def __post_init__(self) -> None:
        if isinstance(self.reference, str) and self.reference != OF_DATA:
            named(self.reference, "reference")
        kind, _, index = self.device.partition(":")
        if kind not in ("auto", "cpu", "cuda", "mps", "xpu") or (index and not index.isdigit()):
            raise ConfigError(
                f"expected auto, cpu, cuda, cuda:N, mps or xpu, got {self.device!r}",
                "device",
                hint="leave it out for auto",
            )


@config
class DistributedConfig:
    """Several learners of one run."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"  # what carries gradients between learners
    num_learners: Count = 1  # learner processes
    sync_period: Count = 1  # updates between two exchanges


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A whole config: canonical names, checked, defaults filled in.

    Sections of components (`learner`, `agent.policy`, entries of `environment.wrappers` and `callbacks`) stay
    maps; `component` or `parse` turn them into the config of the component they name.

    Attributes:
        data: which data to learn from: keys of the buffer `dataset`, or of another `type`; None: experience.
        stages: of a run in several stages; the other attributes are those of the last one then.
        notices: what the user should be told before training starts, one sentence each.
        source: the merged map everything was read from, with the places of its keys.
    """

    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
    environment: EnvironmentConfig
    agent: AgentConfig = field(default_factory=AgentConfig)
    learner: Section
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    data: Section | None = None
    training: TrainingConfig = field(default_factory=TrainingConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    callbacks: tuple[Section, ...] = ()
    stages: tuple[Stage, ...] = ()
    notices: tuple[str, ...] = field(default=(), compare=False)
    source: Section = field(default_factory=Section, compare=False, repr=False)

    @property
    def parts(self) -> tuple[Experiment, ...]:
        """Its stages; itself where it has none."""
        return tuple(stage.exp for stage in self.stages) or (self,)

    def with_experiment(self, **changes: Any) -> Experiment:
        """The same with other values in the section `experiment`, which all stages share."""
        stages = tuple(replace(stage, exp=stage.exp.with_experiment(**changes)) for stage in self.stages)
        return replace(self, experiment=replace(self.experiment, **changes), stages=stages)

    @property
    def total(self) -> int:
        """How long the run is: environment steps, or updates where it learns from data."""
        if self.data is None:
            return self.training.total_timesteps
        return self.training.total_updates or UPDATES

    @property
    def units(self) -> str:
        """What that is counted in."""
        return "env steps" if self.data is None else "updates"

    def locate(self, path: str) -> Location | None:
        """Where the key at a dotted path is written, or the nearest section around it; None for a default."""
        return find(self.source, path)[1]

    @contextmanager
    def locating(self) -> Iterator[None]:
        """Adds file and line to a ConfigError raised inside: `with exp.locating(): agent = build(exp)`."""
        try:
            yield
        except ConfigError as error:
            raise error.located(self.locate) from error.__cause__


@dataclass(frozen=True)
class Stage:
    """One stage of a run: an ordinary run, whose agent starts as that of the stage before.

    Attributes:
        name: as the config says.
        exp: its configuration, the sections that all stages share included.
        own: what the config says of this stage alone.
    """

    name: str
    exp: Experiment
    own: Section


SECTIONS: Mapping[str, Any] = {
    "experiment": ExperimentConfig,
    "environment": EnvironmentConfig,
    "agent": AgentConfig,
    "learner": Section,
    "sampling": SamplingConfig,
    "data": Section,
    "training": TrainingConfig,
    "distributed": DistributedConfig,
    "callbacks": tuple[Section, ...],
}
