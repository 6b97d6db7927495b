"""The guard of a run: looks at experience, steps and the agent, and applies the rule of `training.guard`."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from uniarena.batch import Rollout
from uniarena.checkpoint import CheckpointError
from uniarena.config.guard import RULES, GuardConfig
from uniarena.learners.base import Update
from uniarena.ops.finite import bounded, largest_within, magnitudes
from uniarena.optim import Minimize, NonFiniteError
from uniarena.trainer import events
from uniarena.trainer.guard.experience import OF_POLICY, clipped, limit, locate, see, spoilt, watched, without
from uniarena.trainer.guard.state import AgentState

if TYPE_CHECKING:
    from uniarena.trainer.trainer import Trainer

_log = logging.getLogger(__name__)

BARREN = 10_000
"""Environment steps in a row of which none was left to learn from, after which the run stops."""
OF_STATE = ("parameter", "optimizer", "buffer")
OF_STEP = ("loss", "gradient", "value")
INSIDE = (
    *(events.EpisodeStart, events.EnvStep, events.EpisodeEnd, events.BatchCollected),
    *(events.LearnStep, events.UpdateEnd),
)
"""Events within an iteration, in which callbacks could have changed the agent."""


class Guard:
    """What stands between a bad number and an optimiser's step.

    Experience is looked at once a chunk, before statistics and the buffer see it; losses and gradients before every
    step; parameters, optimiser state and buffers when an iteration begins and ends, before an update where callbacks
    listen within iterations, and before a checkpoint is written.

    Args:
        cfg: the section `training.guard`.
        trainer: whose run it is.

    Attributes:
        rule: what is applied to the fault at hand; each begins with `cfg.rule`, and `on_fault` may set another.
        counts: what happened so far, by name; reaches the loggers as `guard/<name>`.
        left_out: environment steps of the newest chunk that nobody learns from.
        barred: `[B]` columns in an episode that was spoilt; None: there are none.
    """

    def __init__(self, cfg: GuardConfig, trainer: Trainer) -> None:
        self.cfg, self.rule = cfg, str(cfg.rule)
        # a circle of references would keep a run's memory, and its mapped files, until the next garbage collection
        self._trainer = weakref.ref(trainer)
        self.counts: dict[str, int] = {}
        self.left_out = 0
        self.barred: Tensor | None = None
        self._seen: dict[str, float] = {}  # leaf → largest good magnitude
        self._tries, self._barren = 0, 0
        self._calm = True  # no fault of the agent's in this iteration
        self._good_counts = (0, 0)  # updates and epochs when the good state was taken
        self._before = 0  # updates when the iteration began
        self._touched = False
        self._state = AgentState(trainer.agent, cfg.max_abs)
        self._state.check_part(cfg.part)

    @property
    def trainer(self) -> Trainer:
        trainer = self._trainer()
        assert trainer is not None
        return trainer

    # -- when the trainer calls ----------------------------------------------------------------------------------
    def arm(self, on: bool = True) -> None:
        """Stand before every gradient step, or (at the end of `fit`) no longer."""
        for minimize in self._minimizers.values():
            minimize.react = self._react if on else None
            minimize.max_abs = self.cfg.max_abs
        if on:
            self._state = AgentState(self.trainer.agent, self.cfg.max_abs)
            self._touched = any(self.trainer.listens(kind) for kind in INSIDE)

    def begin(self) -> None:
        """An iteration begins: the agent is good, and kept as it is."""
        self.inspect()
        self._state.take()
        counters = self.trainer.counters
        self._good_counts, self._calm = (counters.updates, counters.epochs), True
        self._before = counters.updates

    def admit(self, rollout: Rollout) -> Rollout:
        """A chunk as it may be learned from: the same where its numbers are good.

        Raises:
            NonFiniteError: it holds bad numbers, and the rule is to stop.
        """
        leaves = watched(rollout)
        sizes, bound, seen = magnitudes([leaf for _, leaf in leaves]), self.cfg.max_abs, self._seen
        self.left_out = 0
        pairs = zip(leaves, sizes, strict=True)
        good = all(size <= bound or size <= limit(name, bound) for (name, _), size in pairs)
        if self.barred is None and good:
            for (name, _), size in zip(leaves, sizes, strict=True):
                if size > seen.get(name, -1.0) and not name.startswith(OF_POLICY):
                    seen[name] = size
            self._barren = 0
            return rollout
        return self._sorted(rollout)

    def update(self, progress: float) -> Update | None:
        """One update of the agent; None where it was left out or undone."""
        try:
            if self._touched:
                self.look()
            return self.trainer.agent.update(progress)
        except NonFiniteError as error:
            self._settle(error)
            return None

    def end(self) -> None:
        """An iteration ends, before anybody hears of it and could save the agent."""
        self.inspect()
        if self._calm and self.trainer.counters.updates > self._before:
            self._tries = 0
        if self.counts:
            self.trainer.metrics |= {f"guard/{name}": float(count) for name, count in self.counts.items()}

    def inspect(self) -> None:
        """Apply the rule where a parameter, an optimiser's state or a buffer is bad."""
        error = self._state.fault()
        while error is not None:
            self._settle(error)
            error = self._state.fault()

    def look(self) -> None:
        """Raise what is wrong with the agent.

        Raises:
            NonFiniteError: a parameter, an optimiser's state or a buffer is bad.
        """
        error = self._state.fault()
        if error is not None:
            raise error

    # -- experience ----------------------------------------------------------------------------------------------
    def _sorted(self, rollout: Rollout) -> Rollout:
        bound, trainer = self.cfg.max_abs, self.trainer
        found, rule = spoilt(rollout, bound, self.barred), str(self.cfg.rule)
        error = locate(rollout, found, bound, trainer.counters.env_steps)
        if error is not None:
            if error.where in OF_POLICY:
                self.inspect()
            rule = self._announce(error)
            if rule == "stop":
                self._stop(error)
        see(rollout, bound, self._seen)
        if rule == "clip":
            self.barred, left_out = None, found.policy | found.carried
            kept, count = clipped(rollout, left_out, bound, self._seen)
            self._count("clipped_values", count)
        else:
            self.barred = found.barred if bool(found.barred.any()) else None
            kept = without(rollout, found.left_out, bound)
        valid, left = int(rollout.rows.valid.sum()), int(kept.rows.valid.sum())
        self.left_out = valid - left
        self._count("dropped_rows", self.left_out)
        self._barren = 0 if left else self._barren + valid
        if self._barren >= BARREN:
            self._stop(error or _barren(self._barren))
        return kept

    # -- steps ---------------------------------------------------------------------------------------------------
    def _react(self, error: NonFiniteError, tensors: dict[str, Tensor]) -> bool:
        """What a bad step asks: whether its tensors were mended (True), or it is left out (False)."""
        cause = self._state.fault()
        if cause is not None:
            raise cause
        rule = self._announce(error)
        if rule not in ("skip", "clip") or error.in_a_row > self.cfg.max_tries:
            error.rule = rule
            raise error
        self._calm = False
        if rule == "skip":
            self._count("skipped_steps")
            return False
        with torch.no_grad():
            for x in tensors.values():
                largest = largest_within(x, self.cfg.max_abs)
                mended = bounded(x, self.cfg.max_abs, largest)
                self._count("clipped_values", int((mended != x).sum()))
                x.copy_(mended)
        return True

    def _settle(self, error: NonFiniteError) -> None:
        """The rule for what ended an update, or is wrong with the agent itself."""
        self._calm = False
        if error.left_out:
            return
        rule = error.rule or self._announce(error)
        self._tries += 1
        done = self.counts.get("reinits", 0) + 1 if rule == "reinit" else self._tries
        if rule == "stop" or max(done, error.in_a_row) > self.cfg.max_tries:
            if rule != "stop":
                error.add_note(
                    f"training.guard.rule={rule} was tried {self.cfg.max_tries} times "
                    f"{'' if rule == 'reinit' else 'in a row '}(training.guard.max_tries), so the run stops."
                )
            self._stop(error)
        if error.where == "buffer" and rule != "rollback":
            rule = "skip"
        if error.where in OF_STEP and rule in ("skip", "clip"):
            self._count("skipped_steps")  # the whole update, of a learner that does not go through `minimize`
        elif rule == "reinit":
            self._reinit(error)
        elif rule == "clip":
            self._count("clipped_values", self._state.mend())
        else:
            self._restore(error, rule)

    def _restore(self, error: NonFiniteError, rule: str) -> None:
        if not self._state.taken:
            raise error
        self._state.restore()
        if rule == "skip":
            self._count("undone_updates")
            return
        self._count("rollbacks")
        for optimizer in self._state.optimizers:
            optimizer.scale(self.cfg.learning_rate_factor**self._tries)

    def _reinit(self, error: NonFiniteError) -> None:
        self._count("reinits")
        names = self._state.part_of(error, self.cfg.part)
        if error.where in OF_STATE:  # a part that was named may be another one than that at fault
            names = list(dict.fromkeys([*names, *self._state.part_of(error, "auto")]))
        self._state.reinit(names, self.trainer.streams.seed_for(f"guard/reinit/{self.counts['reinits']}"))

    # -- what all have in common ---------------------------------------------------------------------------------
    def _announce(self, error: NonFiniteError) -> str:
        """Count and report a fault → the rule for it, which a callback may choose."""
        self.rule = str(self.cfg.rule)
        self._count("faults")
        self.trainer.emit(events.FaultFound(error, self.rule))
        if self.rule not in RULES:
            raise ValueError(f"guard.rule={self.rule!r}; expected one of {', '.join(RULES)}.") from error
        number = self.counts["faults"]
        if self.rule != "stop" and number & (number - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            _log.warning("fault %d, training.guard.rule=%s: %s", number, self.rule, error)
        return self.rule

    def _count(self, name: str, count: int = 1) -> None:
        if count:
            self.counts[name] = self.counts.get(name, 0) + count

    def _stop(self, error: NonFiniteError) -> None:
        """Save the last good state and raise.

        Raises:
            NonFiniteError: always.
        """
        trainer = self.trainer
        if self._state.taken and (error.where in (*OF_STATE, *OF_STEP) or self._state.fault() is not None):
            self._state.restore()
            trainer.counters.updates, trainer.counters.epochs = self._good_counts
        self.barred = None
        if self._state.fault() is None:
            try:
                path = trainer.save_last_good()
            except CheckpointError as failed:
                error.add_note(f"The last good state could not be saved: {failed}")
            else:
                if path is not None:
                    error.add_note(f"The last good state is kept in {path}.")
        error.add_note(
            "Where this may happen, training.guard says how to go on: skip, clip, rollback or reinit."
        )
        raise error

    @property
    def _minimizers(self) -> dict[str, Minimize]:
        agent = self.trainer.agent
        found = {"learner": agent.learner.minimize}
        for k, bonus in enumerate(agent.bonuses):
            if isinstance(minimize := getattr(bonus, "minimize", None), Minimize):
                found[f"bonus/{k}"] = minimize
        return found

    def state_dict(self) -> dict[str, Any]:
        return {
            "counts": dict(self.counts),
            "barred": self.barred,
            "seen": dict(self._seen),
            "tries": self._tries,
            "barren": self._barren,
            "bad_steps": {name: dict(minimize.bad_steps) for name, minimize in self._minimizers.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        self.counts, self._seen = dict(state["counts"]), dict(state["seen"])
        barred = state["barred"]
        self.barred = None if barred is None else barred.to(self.trainer.agent.device, copy=True)
        self._tries, self._barren = int(state["tries"]), int(state["barren"])
        for name, minimize in self._minimizers.items():
            minimize.bad_steps = dict(state["bad_steps"].get(name, {}))


def _barren(steps: int) -> NonFiniteError:
    return NonFiniteError(
        "observation",
        [],
        f"nothing was left to learn from of {steps:,} environment steps: the episodes of all environments were "
        "spoilt by bad numbers and did not end.",
    )
