"""Names to components: built in, from plug-ins, registered by the user. Imports a component on first use.

Four ways to add one, none of which touches this package:

- an entry point in the group `uniarena.<kind>s`, such as `uniarena.learners`: `mine = "package.module:Mine"`;
- `uniarena.register("learner", "mine")` as a decorator, or `register("learner", "mine", Mine)`;
- `type: package.module:Mine` in the config, without any registration;
- the class itself, where the config is written in Python.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

_WRAPPERS = "uniarena.envs.wrappers"
_CALLBACKS = "uniarena.trainer.callbacks"
_LOGGERS = "uniarena.trainer.loggers"

BUILT_IN: dict[str, dict[str, str]] = {
    "learner": {
        "ppo": "uniarena.learners.on_policy.presets:PPO",
        "a2c": "uniarena.learners.on_policy.presets:A2C",
        "trpo": "uniarena.learners.on_policy.presets:TRPO",
        "impala": "uniarena.learners.on_policy.presets:IMPALA",
        "appo": "uniarena.learners.on_policy.presets:APPO",
        "dqn": "uniarena.learners.off_policy.dqn:DQN",
        "c51": "uniarena.learners.off_policy.dqn_presets:C51",
        "qr_dqn": "uniarena.learners.off_policy.dqn_presets:QRDQN",
        "iqn": "uniarena.learners.off_policy.dqn_presets:IQN",
        "rainbow": "uniarena.learners.off_policy.dqn_presets:RAINBOW",
        "ddpg": "uniarena.learners.off_policy.ddpg:DDPG",
        "td3": "uniarena.learners.off_policy.td3:TD3",
        "sac": "uniarena.learners.off_policy.sac:SAC",
        "tqc": "uniarena.learners.off_policy.tqc:TQC",
        "redq": "uniarena.learners.off_policy.redq:REDQ",
        "droq": "uniarena.learners.off_policy.redq:DROQ",
        "bc": "uniarena.learners.offline.bc:BC",
        "td3_bc": "uniarena.learners.offline.td3_bc:TD3_BC",
        "rebrac": "uniarena.learners.offline.td3_bc:REBRAC",
        "iql": "uniarena.learners.offline.iql:IQL",
        "awac": "uniarena.learners.offline.iql:AWAC",
        "bcq": "uniarena.learners.offline.bcq:BCQ",
        "discrete_bcq": "uniarena.learners.offline.discrete_bcq:DiscreteBCQ",
        "cql": "uniarena.learners.offline.cql:CQL",
        "discrete_cql": "uniarena.learners.offline.cql:DISCRETE_CQL",
        "decision_transformer": "uniarena.learners.offline.decision_transformer:DecisionTransformer",
    },
    "env": {},
    "wrapper": {
        "normalize_observation": f"{_WRAPPERS}.normalize:NormalizeObservation",
        "normalize_reward": f"{_WRAPPERS}.normalize:NormalizeReward",
        "frame_stack": f"{_WRAPPERS}.frame_stack:FrameStack",
        "preprocess_image": f"{_WRAPPERS}.image:PreprocessImage",
        "select_entries": f"{_WRAPPERS}.select:SelectEntries",
        "clip_reward": f"{_WRAPPERS}.reward:ClipReward",
        "scale_reward": f"{_WRAPPERS}.reward:ScaleReward",
        "rescale_action": f"{_WRAPPERS}.action:RescaleAction",
        "clip_action": f"{_WRAPPERS}.action:ClipAction",
        "sticky_actions": f"{_WRAPPERS}.action:StickyActions",
        "time_limit": f"{_WRAPPERS}.time_limit:TimeLimit",
        "episodic_life": f"{_WRAPPERS}.episodic_life:EpisodicLife",
        "record_video": f"{_WRAPPERS}.record_video:RecordVideo",
    },
    "network": {
        "mlp": "uniarena.nets.mlp:MLP",
        "nature_cnn": "uniarena.nets.cnn:NatureCNN",
        "impala_cnn": "uniarena.nets.cnn:ImpalaCNN",
        "minatar_cnn": "uniarena.nets.cnn:MinAtarCNN",
    },
    "memory": {
        "lstm": "uniarena.nets.rnn:LSTM",
        "gru": "uniarena.nets.rnn:GRU",
        "gtrxl": "uniarena.nets.transformer:GatedTransformer",
        "key_value": "uniarena.nets.external_memory:KeyValueMemory",
    },
    "explorer": {
        "sample": "uniarena.explorers.sample:SampleExplorer",
        "epsilon_greedy": "uniarena.explorers.epsilon_greedy:EpsilonGreedy",
        "boltzmann": "uniarena.explorers.boltzmann:Boltzmann",
        "gaussian_noise": "uniarena.explorers.gaussian_noise:GaussianNoise",
        "ornstein_uhlenbeck": "uniarena.explorers.ornstein_uhlenbeck:OrnsteinUhlenbeck",
        "parameter_noise": "uniarena.explorers.parameter_noise:ParameterNoise",
    },
    "bonus": {
        "rnd": "uniarena.explorers.bonuses.rnd:RND",
        "icm": "uniarena.explorers.bonuses.icm:ICM",
        "count": "uniarena.explorers.bonuses.count:Count",
        "information_gain": "uniarena.explorers.bonuses.information_gain:InformationGain",
    },
    "regularizer": {
        "behavior_cloning": "uniarena.learners.regularizers.cloning:BehaviorCloning",
        "policy_constraint": "uniarena.learners.regularizers.constraint:PolicyConstraint",
    },
    "buffer": {
        "rollout": "uniarena.buffers.rollout:RolloutBuffer",
        "replay": "uniarena.buffers.replay:ReplayBuffer",
        "prioritized": "uniarena.buffers.prioritized:PrioritizedReplay",
        "sequence": "uniarena.buffers.sequence:SequenceReplay",
        "dataset": "uniarena.buffers.dataset:DatasetBuffer",
        "dataset_sequence": "uniarena.buffers.trajectories:DatasetSequences",
    },
    "optimizer": {
        "adam": "uniarena.optim.fused_adam:FusedAdam",
        "adamw": "torch.optim:AdamW",
        "rmsprop": "torch.optim:RMSprop",
        "sgd": "torch.optim:SGD",
        "sam": "uniarena.optim.sharpness:SharpnessAware",
    },
    "schedule": {
        "constant": "uniarena.optim.schedules:constant",
        "linear": "uniarena.optim.schedules:linear",
        "cosine": "uniarena.optim.schedules:cosine",
        "exponential": "uniarena.optim.schedules:exponential",
        "warm_restarts": "uniarena.optim.schedules:warm_restarts",
        "kl_adaptive": "uniarena.optim.schedules:KLAdaptive",
        "plateau": "uniarena.optim.schedules:Plateau",
    },
    "callback": {
        "checkpoint": f"{_CALLBACKS}.checkpoint:Checkpoint",
        "evaluate": f"{_CALLBACKS}.evaluate:Evaluate",
        "evaluate_on_data": f"{_CALLBACKS}.evaluate_on_data:EvaluateOnData",
        "log": f"{_CALLBACKS}.log:Log",
        "progress": f"{_CALLBACKS}.progress:Progress",
        "early_stop": f"{_CALLBACKS}.early_stop:EarlyStop",
        "doctor": "uniarena.analysis.doctor.callback:Doctor",
        "monitor": f"{_CALLBACKS}.monitor:Monitor",
        "rules": f"{_CALLBACKS}.rules:Rules",
        "video": f"{_CALLBACKS}.video:Video",
        "adaptive_batch": f"{_CALLBACKS}.adaptive_batch:AdaptiveBatch",
        "curriculum": f"{_CALLBACKS}.curriculum:CurriculumScheduler",
    },
    "logger": {
        "jsonl": f"{_LOGGERS}.jsonl:Jsonl",
        "tensorboard": f"{_LOGGERS}.tensorboard:Tensorboard",
    },
}

KINDS = tuple(BUILT_IN)
_PLURALS = {"bonus": "bonuses", "memory": "memories"}
GROUPS = {kind: f"uniarena.{_PLURALS.get(kind, f'{kind}s')}" for kind in BUILT_IN}

_registered: dict[str, dict[str, Any]] = {kind: {} for kind in BUILT_IN}


class RegistryError(LookupError):
    """A name that cannot be resolved. Attribute `hint`: what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.args[0]}\n  fix: {self.hint}" if self.hint else str(self.args[0])


class UnknownNameError(RegistryError):
    """Nobody registered this name."""


class BrokenPluginError(RegistryError):
    """The name is known, but importing what it stands for failed. `__cause__` is the reason."""


class Plugin(NamedTuple):
    """An entry point of an installed package."""

    kind: str
    name: str
    target: str
    package: str


@overload
def register(kind: str, name: str) -> Callable[[T], T]: ...
@overload
def register(kind: str, name: str, target: T) -> T: ...
def register(kind: str, name: str, target: Any = None) -> Any:
    """Make a component known by name; usable as a decorator.

    Args:
        kind: one of `KINDS`: learner, env, wrapper, network, explorer, bonus, buffer, optimizer, …
        name: what configs call it: lower case with underscores.
        target: the component, or `"package.module:Name"`, which is imported on first use.

    Raises:
        RegistryError: unknown kind, a name that configs could not spell, or a name that is taken.
    """
    if target is None:
        return lambda component: register(kind, name, component)
    table = _table(kind)
    if not (name.isidentifier() and name == name.lower()):
        raise RegistryError(
            f"{name!r} cannot name a {kind}", "use lower case, digits and underscores: my_learner"
        )
    taken = BUILT_IN[kind].get(name) or table.get(name)
    if taken is not None and import_path(taken) != import_path(target):
        raise RegistryError(
            f"the {kind} name {name!r} is taken by {import_path(taken)}", "choose another name"
        )
    table[name] = target  # the same class again is a notebook cell run twice: the newest counts
    return target


def lookup(kind: str, name: Any) -> Any:
    """The component of that name.

    Args:
        kind: see `register`.
        name: a registered name, an entry point's name, or an import path `package.module:Name`; the component
            itself, where the config is written in Python, is given back.

    Raises:
        UnknownNameError: with the name most likely meant.
        BrokenPluginError: it is known but cannot be imported; `__cause__` says why.
    """
    table = _table(kind)
    if not isinstance(name, str):
        return name
    if ":" in name:
        return import_object(name)
    target = table.get(name) or BUILT_IN[kind].get(name)
    if target is None:
        entry = _entry_points(kind).get(name)
        if entry is None:
            raise _unknown(kind, name)
        owner = entry.dist.name if entry.dist else "an installed package"
        try:
            return entry.load()
        except Exception as error:
            raise BrokenPluginError(
                f"the {kind} {name!r} of plug-in {owner} does not import: {type(error).__name__}: {error}",
                f"repair or uninstall {owner} ({entry.value})",
            ) from error
    return import_object(target) if isinstance(target, str) else target


def import_object(path: str) -> Any:
    """The object an import path `package.module:Name` leads to.

    Raises:
        UnknownNameError: there is no such module or name.
        BrokenPluginError: the module is there but fails while it is imported.
    """
    module_name, _, attributes = path.partition(":")
    if not module_name or not attributes:
        raise UnknownNameError(f"{path!r} is not an import path", "write package.module:Name")
    if "/" in module_name or module_name.endswith(".py"):
        dotted = module_name.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise UnknownNameError(
            f"{path!r} is not an import path, which has neither slashes nor .py",
            f"write {dotted}:{attributes}",
        )
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UnknownNameError(
                f"there is no module {error.name!r} (asked for by {path!r})",
                "run from the folder that holds it, install it, or put that folder on PYTHONPATH",
            ) from error
        raise BrokenPluginError(
            f"{module_name} needs {error.name!r}, which is not installed", f"pip install {error.name}"
        ) from error
    except Exception as error:
        raise BrokenPluginError(
            f"{module_name} fails on import: {type(error).__name__}: {error}", f"repair {module_name}"
        ) from error
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            near = difflib.get_close_matches(attribute, dir(found), n=1)
            hint = f"did you mean {module_name}:{near[0]}?" if near else ""
            if module_name == "__main__":
                hint = (
                    "it was defined in the script that ran then: move it into a module, and import it there"
                )
            raise UnknownNameError(f"{module_name} has no {attributes!r}", hint)
        found = getattr(found, attribute)
    return found


def names(kind: str) -> list[str]:
    """Every name of a kind: built in, registered, and by entry point. Nothing is imported."""
    return sorted({*BUILT_IN[kind], *_table(kind), *_entry_points(kind)})


def known(kind: str, name: str) -> bool:
    """Whether the name resolves without an import path. Asks the installed packages only if need be."""
    return name in BUILT_IN[kind] or name in _table(kind) or name in _entry_points(kind)


def plugins() -> list[Plugin]:
    """The entry points of installed packages, whether they import or not."""
    return [
        Plugin(kind, entry.name, entry.value, entry.dist.name if entry.dist else "?")
        for kind in BUILT_IN
        for entry in _entry_points(kind).values()
    ]


def _table(kind: str) -> dict[str, Any]:
    if kind not in BUILT_IN:
        raise RegistryError(f"there is no kind {kind!r} of component", f"one of {', '.join(BUILT_IN)}")
    return _registered[kind]


@cache
def _entry_points(kind: str) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # costs some 20 ms: only where a name is not built in

    return {
        entry.name: entry for entry in entry_points(group=GROUPS[kind]) if entry.name not in BUILT_IN[kind]
    }


def import_path(target: Any) -> str:
    """The path `package.module:Name` that a component is imported from; a text stays as it is."""
    return (
        target
        if isinstance(target, str)
        else f"{target.__module__}:{getattr(target, '__qualname__', type(target).__qualname__)}"
    )


def by_import_path(tree: Any) -> Any:
    """Plain data as files keep it: classes and functions in it by their import paths, tuples as lists."""
    if isinstance(tree, Mapping):
        return {key: by_import_path(entry) for key, entry in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [by_import_path(entry) for entry in tree]
    return import_path(tree) if callable(tree) else tree


def _unknown(kind: str, name: str) -> UnknownNameError:
    choices = names(kind)
    near = difflib.get_close_matches(name.lower(), choices, n=1)
    dotted, _, last = name.rpartition(".")
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif dotted:
        hint = f"an import path has a colon before the name: {dotted}:{last}"
    else:
        hint = "your own class is named by its import path, package.module:Name"
    return UnknownNameError(f"there is no {kind} {name!r}; known: {', '.join(choices) or 'none'}", hint)
