"""What may change when a run is resumed: hyper-parameters, not what its state is shaped by; and the record of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uniarena.config import Experiment, Section, parse
from uniarena.config.assembly import REGULARIZERS
from uniarena.config.errors import Faults
from uniarena.config.section import Items
from uniarena.explorers.decay import DecayConfig
from uniarena.optim import Optimizer, ScheduleConfig, make_schedule
from uniarena.run.compare import differences, told
from uniarena.run.whole import filled, is_schedule
from uniarena.trainer.trainer import Trainer

_FREE = re.compile(
    r"training\.|distributed\.(backend|sync_period)|experiment\.(name|project|tags|notes|loggers)"
    r"|sampling\.timeout_s$|environment\.workers\.(timeout_s|on_fault|restarts|restart_window)$"
    r"|learner\.|agent\.explorer\.|agent\.buffer\.(memory_map|beta|her\.|demonstrations\.ratio)"
    r"|agent\.intrinsic\.(\d+\.)?(reward_scale|update_proportion|update_period|batch_size)$|callbacks\.\d+\."
    r"|data\.path$"  # where the same data lies now: a dataset refuses any other
)
_PRECIOUS = (
    (r"environment\.", "the environment and its state are part of every checkpoint"),
    (r"agent\.(policy|value|memory)", "the networks that have been trained are made of it"),
    (r"experiment\.seed$", "every random stream of the run comes from it"),
    (r"experiment\.run_dir$", "a run stays in its folder"),
    (r"agent\.init_from", "it is where the run started"),
    (r"agent\.buffer", "the replay memory that was gathered is laid out by it"),
    (r"agent\.intrinsic", "the bonus that has been trained is made of it"),
    (r"agent\.explorer|learner\.type$", "its state is part of every checkpoint"),
    (r"callbacks", "each callback's state is part of every checkpoint, in their order"),
    (r"sampling\.", "the chunk that is under way is part of every checkpoint"),
    (r"distributed\.", "a run has one learner"),
)
_GOES_BY = re.compile(r"learner\.regularizers\.\d+\.(type$|to$|data$|data\.(?!memory_gb$|memory_map$))")
"""What tells a term's own data or reference."""
_SHAPES = frozenset(
    (
        "n_critics",
        "layer_norm",
        "dropout",
        "dueling",
        "noisy",
        "returns",
        "v_min",
        "v_max",
        "n_atoms",
        "n_quantiles",
        "n_targets",
        "normalize_return",
    )
)
_FIRST = frozenset(("alpha", "alpha_init", "noisy_sigma", "ent_coef_init"))
_COUNTED = frozenset(("updates_per_env_step", "learning_starts"))
_SETTINGS = ("eps", "weight_decay", "betas", "alpha")
"""Settings of a torch optimiser that hold for the next step: its saved state has those of before."""


@dataclass(frozen=True)
class Change:
    """A key with another value than before.

    Attributes:
        key: its path in the config.
        old, new: plain values; None: not set.
    """

    key: str
    old: Any
    new: Any

    def entry(self, env_steps: int) -> dict[str, Any]:
        """As it is recorded."""
        return {"env_steps": env_steps, "key": self.key, "old": self.old, "new": self.new}


def find_changes(before: Experiment, after: Experiment, run: Path) -> list[Change]:
    """What differs between the configuration that a checkpoint was written with and the one to go on with.

    Raises:
        ConfigError: something that the state of the run is shaped by; every such key, and what to do instead.
    """
    trees = filled(before), filled(after)
    found = [Change(key, *pair) for key, pair in differences(*trees).items()]
    explorer = trees[1]["agent"]["explorer"].get("type")
    faults = Faults()
    for change in found:
        if why := _refusal(change, explorer):
            message = f"{_shown(change.old)} → {_shown(change.new)} cannot be changed in a run that has begun: {why}"
            faults.add(message, change.key, after.locate(change.key), _way_out(change, run))
    faults.check()
    return found


def _refusal(change: Change, explorer: Any) -> str | None:
    """Why a key may not change; None where it may."""
    section, _, field = change.key.rpartition(".")
    if change.key in ("learner.optimizer.type", "learner.optimizer.base", "learner.policy_step"):
        return "the optimiser's moments are part of every checkpoint"
    if change.key == "learner.optimizer.momentum":
        return "the optimiser keeps what its momentum has gathered"
    if section == "learner" and field in _SHAPES:
        return "the networks that have been trained are made of it"
    if change.key == REGULARIZERS:
        return _terms_refused(change)
    if _GOES_BY.match(change.key):
        return "what a term goes by is part of every checkpoint"
    if section == "learner" and field in _FIRST:
        return "it is a first value, and has been learned or drawn from since"
    if change.key == "learner.ent_coef" and "auto" in (change.old, change.new):
        return "an adapted coefficient is part of every checkpoint, a fixed one is not"
    if _measured(change.old) and _measured(change.new) and change.old["start"] != change.new["start"]:
        return "it is a first value, and has been adapted since"
    if section == "learner" and field in _COUNTED:
        return "updates are counted over the whole run, so many would fall due, or none for long"
    if change.key == "agent.explorer.sigma" and explorer == "parameter_noise":
        return "it is a first value, and has been adapted since"
    if _FREE.match(change.key) and field != "type":
        return None
    return next(
        (why for pattern, why in _PRECIOUS if re.match(pattern, change.key)), "it shapes the run's state"
    )


def _terms_refused(change: Change) -> str | None:
    """Why terms may not come or go like that; None where others only follow those that were there."""
    old, new = list(change.old or ()), list(change.new or ())
    if len(new) < len(old):
        return "terms may come, and none may go"
    for index, (before, after) in enumerate(zip(old, new, strict=False)):
        for key, pair in differences(before, after, f"{REGULARIZERS}.{index}").items():
            if why := _refusal(Change(key, *pair), None):
                return f"{key} differs, and {why}; new terms follow the others"
    return None


def _shown(value: Any) -> str:
    """A value for people: of a list of parts their types."""
    if isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
        return f"[{', '.join(told(entry.get('type', '…')) for entry in value)}]"
    return told(value)


def _measured(value: Any) -> bool:
    return is_schedule(value) and value["type"] in ("kl_adaptive", "plateau")


def _way_out(change: Change, run: Path) -> str:
    whole = told(change.new).replace(" ", "")
    value = "…" if isinstance(change.new, Mapping) or _shown(change.new).replace(" ", "") != whole else whole
    quoted = shlex.quote(str(run))
    start = f"uniarena train {shlex.quote(f'{run}/config.yaml')} {change.key}={value}"
    if change.key == "experiment.run_dir":
        return f"uniarena resume {quoted} --as {value} goes on in another folder"
    if re.match(r"agent\.(policy|value|init_from)", change.key) or change.key.rpartition(".")[2] in _SHAPES:
        return f"train a new run: {start}"
    if change.key == REGULARIZERS:
        return f"learner.regularizers.0.weight=0 silences one; or train a new run: {start}"
    if _GOES_BY.match(change.key):
        return f"train a new run: {start}"
    return f"start a new run, with these networks where they fit: {start} agent.init_from={quoted}"


# -- the record --------------------------------------------------------------------------------------------------
def undone(tree: Section, history: list[dict[str, Any]], until: int = 0) -> Section:
    """A configuration without the changes made at `until` env steps and later."""
    for entry in reversed(history):
        if entry["env_steps"] >= until:
            tree = _put(tree, entry["key"].split("."), entry["old"])
    return tree


def _put(tree: Any, keys: list[str], value: Any) -> Any:
    """A copy with the value at a path; maps that are missing are made."""
    if not keys:
        return _section(value)
    if isinstance(tree, list):
        index = int(keys[0])
        return Items(_put(entry, keys[1:], value) if i == index else entry for i, entry in enumerate(tree))
    copy = Section(tree or {})
    copy[keys[0]] = _put(copy.get(keys[0]), keys[1:], value)
    return copy


def _section(value: Any) -> Any:
    return Section({k: _section(v) for k, v in value.items()}) if isinstance(value, Mapping) else value


# -- what they do ------------------------------------------------------------------------------------------------
def settings(trainer: Trainer, changes: list[Change]) -> list[tuple[Optimizer, str, Any]]:
    """New settings of the optimisers, to be set again after the state is loaded: (optimiser, name, value)."""
    names = [c.key.rpartition(".")[2] for c in changes if c.key.startswith("learner.optimizer.")]
    wanted = [name for name in names if name in _SETTINGS]
    return [
        (optimizer, name, optimizer.groups[0][name])
        for optimizer in trainer.agent.learner.optimizers.values()
        for name in wanted
        if name in optimizer.groups[0]
    ]


def schedules_moved(before: Experiment, after: Experiment, done: int) -> list[str]:
    """What a new length of the run does to each schedule, which is a function of the fraction that is done."""
    totals = before.total, after.total
    if totals[0] == totals[1]:
        return []
    old, new = dict(_schedules(filled(before))), dict(_schedules(filled(after)))
    lines = []
    for path in old.keys() & new.keys():
        if old[path] != new[path] or _measured(new[path]):
            continue
        values = [_value(new[path], done, min(1.0, done / total)) for total in totals]
        if values[0] != values[1]:
            kind = new[path]
            lines.append(
                f"{path} follows the new length of the run: {values[0]:.4g} → {values[1]:.4g} at {done:,} of "
                f"{totals[1]:,} {after.units} ({kind['type']} from {kind['start']:g} to {kind['end']:g})"
            )
    return sorted(lines)


def _schedules(value: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    if is_schedule(value):
        yield path, value
    elif isinstance(value, Mapping | list):
        entries = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, entry in entries:
            yield from _schedules(entry, f"{path}.{key}" if path else str(key))


def _value(section: Mapping[str, Any], env_steps: int, progress: float) -> float:
    if "fraction" in section:
        return parse(DecayConfig, section, "schedule").at(env_steps, progress)
    return make_schedule(parse(ScheduleConfig, section, "schedule"))(progress)
