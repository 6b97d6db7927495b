"""The trainer: collect, observe, update, publish, again. Everything that watches is a callback."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from uniarena import checkpoint
from uniarena.agent import Agent
from uniarena.batch import Rollout, tree_map
from uniarena.config import SamplingConfig
from uniarena.config.guard import GuardConfig
from uniarena.envs.protocol import RESTARTS, Env
from uniarena.ops.statistics import RunningMean, count_true
from uniarena.sampling import Ahead, Episode, EpisodeTracker, Sampler, build_sampler
from uniarena.sampling.evaluation import refuse_misfit
from uniarena.seeding import Streams, global_state, preserved_globals, set_global_state
from uniarena.trainer import events
from uniarena.trainer.guard import Guard
from uniarena.trainer.schedule import Counters, schedule_for

_log = logging.getLogger(__name__)


class Trainer:
    """Trains `agent` in `env`.

    Args:
        agent: what learns.
        env: where it acts.
        callbacks: objects with some of the methods `on_training_start … on_exception`, called as `on_x(trainer, event)`
            in the order given.
        run_dir: where checkpoints go; None: nothing is saved.
        meta: plain data kept in every checkpoint's manifest (resolved config, provenance).
        guard: what becomes of NaN, infinite and huge numbers; by default they stop the run.
        sampling: who steps the environment; by default this process.

    Attributes:
        counters: where the run stands.
        metrics: scalars of the current iteration, by name.
        rollout: the newest one, valid until the next.
        total_env_steps: where `fit` will stop; offline it counts updates.

    Raises:
        ValueError: the agent was made for other observations or actions than `env` has.
    """

    def __init__(
        self,
        agent: Agent,
        env: Env,
        *,
        callbacks: Iterable[Any] = (),
        run_dir: str | Path | None = None,
        meta: dict[str, Any] | None = None,
        env_factory: Callable[..., Env] | None = None,
        guard: GuardConfig | None = None,
        sampling: SamplingConfig | None = None,
    ) -> None:
        refuse_misfit(agent, env)
        self.agent, self.meta = agent, meta or {}
        self.run_dir = None if run_dir is None else Path(run_dir).absolute()
        self.streams: Streams = agent.streams
        self.sampler: Sampler = build_sampler(agent, env, sampling or SamplingConfig())
        self.callbacks = events.listening(callbacks)
        due = [getattr(getattr(each, "cfg", None), "every_env_steps", None) for each in self.callbacks]
        self.schedule = schedule_for(agent.learner.cfg, [steps for steps in due if steps], agent.buffer)
        self.counters, self.episodes = Counters(unit=self.schedule.unit), EpisodeTracker()
        self.metrics: dict[str, float] = {}
        self.total_env_steps = 0
        self.should_stop = False
        self.stop_reason = "finished"
        self.loop_seconds, self.evaluation_seconds = 0.0, 0.0
        self.last_evaluation: Any = None
        self._factory = env_factory or getattr(env, "factory", None)
        self._user_figures: dict[str, list[float]] = {}
        self.rollout: Rollout | None = None
        self._finished: list[Episode] = []  # of this iteration
        self._resumed = self._over = False
        self._listeners = events.listeners(self.callbacks)
        self.guard = Guard(guard or GuardConfig(), self)

    # -- the loop ------------------------------------------------------------------------------------------------
    def fit(self, env_steps: int) -> Counters:
        """Train until `counters.env_steps` reaches `env_steps` (counted over the whole life of the run) or a stop;
        offline, where no environment is stepped, until `counters.updates` does.

        A stop that was asked for before the call, by a signal or a timer, is a stop; one that ended an earlier call is
        forgotten.

        Raises:
            ValueError: `env_steps` is not positive.
        """
        if env_steps <= 0:
            raise ValueError(f"fit(env_steps={env_steps}): give a positive number of environment steps.")
        if self._over:
            self.should_stop, self.stop_reason, self._over = False, "finished", False
        self.total_env_steps = env_steps
        self.agent.learner.minimize.hook = self._learn_step_hook()
        self.guard.arm()
        try:
            self.emit(events.TrainingStart(self._resumed))
            self.sampler.publish(self.agent.actor, self.counters.updates)
            while not self.done:
                started, evaluated = time.perf_counter(), self.evaluation_seconds
                self._iteration()
                elapsed = time.perf_counter() - started - (self.evaluation_seconds - evaluated)
                self.loop_seconds += elapsed
            self.emit(events.TrainingEnd(self.stop_reason))
        except BaseException as error:
            self._tell(error)
            raise
        finally:
            self._over, self.agent.learner.minimize.hook = True, None
            self.guard.arm(False)
        return self.counters

    def _iteration(self) -> None:
        self.guard.begin()
        self.metrics, self._user_figures, self._finished = {}, {}, []
        mean, columns = RunningMean(), self.sampler.columns
        end, last = self.schedule.iteration_end(self.counters, self.total_env_steps), False
        while not last:
            wanted = self.schedule.env_steps(self.counters, columns, self.total_env_steps)
            rows = -(-wanted // columns) * columns
            last = self.counters.clock + rows >= end
            self._round(wanted, last and self._boundary_due(), mean)
        if self._finished:
            self._episode_metrics(self._finished)
        self.metrics = {name: float(value) for name, value in mean.result().items()} | self.metrics
        for optimizer in self.agent.learner.optimizers.values():
            optimizer.follow(self.metrics)
        self.counters.iterations += 1
        self.guard.end()
        if self.stop_reason == "interrupted" and self.counters.clock >= self.total_env_steps:
            self.should_stop, self.stop_reason = False, "finished"  # all is collected: nothing is left undone
        self.emit(events.IterationEnd())

    def _round(self, wanted: int, boundary: bool, mean: RunningMean) -> None:
        """Collect once and make the updates that are due."""
        self.agent.explorer.set_clock(self.counters.env_steps, self.progress)
        ahead = Ahead(self.schedule.chunk(self.sampler.columns), self.total_env_steps)
        rollout = self.sampler.collect(wanted, boundary, ahead)
        if rollout.T:  # offline it has no rows
            self.rollout = self.agent.observe(self.guard.admit(rollout))
            self._account(self.rollout)
        due = self.schedule.updates_due(self.counters, self.agent.buffer, self.total_env_steps)
        for _ in range(due):
            update = self.guard.update(self.progress)
            if update is None:
                continue
            self.counters.updates += 1
            self.counters.epochs += self.schedule.epochs_per_update
            mean.add(update.metrics)
            if self.listens(events.UpdateEnd):
                self.metrics.update({name: float(value) for name, value in update.metrics.items()})
                self.emit(events.UpdateEnd(self.metrics))
        if due:
            self.agent.refresh()
            self.sampler.publish(self.agent.actor, self.counters.updates)

    @property
    def done(self) -> bool:
        return self.should_stop or self.counters.clock >= self.total_env_steps

    @property
    def progress(self) -> float:
        """Fraction of the run that is collected (offline: done), in [0, 1]: the clock of schedules."""
        return min(1.0, self.counters.clock / max(1, self.total_env_steps))

    def request_stop(self, reason: str) -> None:
        """End the run cleanly after this iteration."""
        self.should_stop, self.stop_reason = True, reason

    def log(self, name: str, value: float) -> None:
        """A figure of the user's own; the mean over the iteration reaches every logger."""
        values = self._user_figures.setdefault(name, [])
        values.append(float(value))
        self.metrics[name] = sum(values) / len(values)

    # -- events --------------------------------------------------------------------------------------------------
    def emit(self, event: Any) -> None:
        """Call every callback that listens to this event. Global random streams are restored after each."""
        if isinstance(event, events.ValidationEpoch):
            self.last_evaluation = event.result
            self.evaluation_seconds += event.result.seconds
        if not (listeners := self._listeners.get(type(event))):
            return
        kept = preserved_globals()
        for listener in listeners:
            with kept:
                listener(self, event)

    def _tell(self, error: BaseException) -> None:
        """Every callback hears of the error, also where one of them fails at it; the first error is the one raised."""
        for listener in self._listeners[events.ExceptionRaised]:
            try:
                with preserved_globals():
                    listener(self, events.ExceptionRaised(error))
            except Exception:
                _log.exception("a callback failed in on_exception")

    def listens(self, event: type) -> bool:
        return bool(self._listeners.get(event))

    def _learn_step_hook(self) -> Callable[[events.LearnStep], None] | None:
        return self._learn_step if self.listens(events.LearnStep) else None

    def _learn_step(self, event: events.LearnStep) -> None:
        self.emit(event)
        self.guard.look()

    def _account(self, rollout: Rollout) -> None:
        """Counters and episode figures of a chunk, and its events replayed in order of time."""
        valid = rollout.rows.valid
        before, rows = self.counters.env_steps, count_true(valid) + self.guard.left_out
        self.counters.env_steps += rows
        self.counters.steps += rollout.T * rollout.B
        finished = self.episodes.update(rollout, self.agent.reward_streams(rollout))
        self.counters.episodes += len(finished)
        if finished:
            self._finished += finished
            if any(self.listens(kind) for kind in events.WITHIN):
                self._episode_metrics(self._finished)
        if "info" in rollout.rows:
            for name, value in rollout.rows.info.items():
                if name.startswith("metrics/"):
                    self.metrics[name.removeprefix("metrics/")] = float(value.nanmean())
                elif name == RESTARTS:
                    self.counters.worker_restarts += int(value.nansum())
        self._replay(rollout, finished, before)
        if self.listens(events.BatchCollected):
            self.emit(events.BatchCollected(rollout, finished))

    def _episode_metrics(self, finished: list[Episode]) -> None:
        count = len(finished)
        self.metrics["return_mean"] = sum(e.episode_return for e in finished) / count
        self.metrics["length_mean"] = sum(e.length for e in finished) / count
        for name in finished[0].totals:
            self.metrics[f"{name}_mean"] = sum(e.totals[name] for e in finished) / count
        known = [e.success for e in finished if e.success == e.success]
        if known:
            self.metrics["success_rate"] = sum(known) / len(known)

    def _replay(self, rollout: Rollout, finished: list[Episode], before: int) -> None:
        wanted = [self.listens(kind) for kind in (events.EpisodeStart, events.EnvStep, events.EpisodeEnd)]
        if not any(wanted):
            return
        rows, ends = rollout.rows, {}  # type: ignore[var-annotated]
        for episode in finished:
            ends.setdefault(episode.t, []).append(episode)
        env_step = before
        for t in range(rollout.T):
            if wanted[0]:
                for b in (rows.is_first[t] & rows.valid[t]).nonzero().flatten().tolist():
                    self.emit(events.EpisodeStart(b, env_step))
            env_step += int(rows.valid[t].sum())
            if wanted[1]:
                obs, action = (tree_map(lambda leaf, t=t: leaf[t], tree) for tree in (rows.obs, rows.action))
                self.emit(
                    events.EnvStep(t, obs, action, rows.reward[t], rows.terminated[t], rows.truncated[t])
                )
            for e in ends.get(t, ()):
                self.emit(events.EpisodeEnd(e.env, env_step, e.episode_return, e.length, e.totals))

    def _boundary_due(self) -> bool:
        """Whether the chunk about to start ends at a step-due checkpoint of an environment without native state."""
        if self.run_dir is None:
            return False
        due = any(callback.due(self) for callback in self.callbacks if hasattr(callback, "due"))
        # in this order: to look whether there is state takes as long as to save it
        return due and not self.sampler.native_state

    # -- environments for evaluation --------------------------------------------------------------------------------
    @property
    def env_factory(self) -> Callable[..., Env]:
        """`env_factory(num_envs=…, seed=…, wrappers=…)` makes another environment with the pipeline of the training
        one, and `wrappers` around it.

        Raises:
            ValueError: the training environment was given as an instance that cannot be made again.
        """
        if self._factory is None:
            raise ValueError(
                "the training environment was given as an object, so no second one can be made for evaluation; "
                "pass env_factory=lambda num_envs, seed, wrappers=(): ... to Trainer."
            )
        return self._factory

    # -- state -----------------------------------------------------------------------------------------------------
    def save(self, kind: str = "step") -> Path | None:
        """Write a checkpoint: `checkpoints/<clock>`, or `checkpoints/best`. Only between iterations, or, of kind
        `fault`, where the environment failed while a chunk was collected.

        Returns:
            its folder; None where the trainer has no run folder.

        Raises:
            NonFiniteError: the agent holds bad numbers, and the guard's rule is to stop.
        """
        if self.run_dir is None:
            return None
        self.guard.inspect()
        name = "best" if kind == "best" else str(self.counters.clock)
        folder = self.run_dir / "checkpoints" / name
        # after a fault the explorer has drawn for a chunk that never came
        exact = kind == "step" or (kind != "fault" and self.sampler.native_state)
        meta = {
            **self.meta,
            "counters": asdict(self.counters),
            "kind": kind,
            "exact": exact,
            "agent": self.agent.spec,
        }
        checkpoint.save(folder, self.state_dict(), meta)
        self.emit(events.CheckpointSaved(folder, kind))
        return folder

    def save_last_good(self) -> Path | None:
        """Write a checkpoint where a run breaks off within an iteration: running episodes and what was gathered for an
        on-policy update are given up, so that a resumed run begins with new episodes.

        Returns:
            its folder, or that of one that was written at this point already; None where there is no run folder.
        """
        self.sampler.abandon()
        self.episodes = EpisodeTracker()
        getattr(self.agent.buffer, "forget", _nothing)()
        here = None if self.run_dir is None else self.run_dir / "checkpoints" / str(self.counters.clock)
        return here if here is not None and (here / "manifest.json").is_file() else self.save("fault")

    def state_dict(self) -> dict[str, Any]:
        return {
            "agent": self.agent.state_dict(),
            "buffer": self.agent.buffer.state_dict(),
            "sampler": self.sampler.state_dict(),
            "trainer": {
                "counters": asdict(self.counters),
                "episodes": self.episodes.state_dict(),
                "streams": self.streams.state_dict(),
                "globals": global_state(),
                "loop_seconds": self.loop_seconds,
                "evaluation_seconds": self.evaluation_seconds,
                "threads": torch.get_num_threads(),
                "guard": self.guard.state_dict(),
                "stop": self.stop_reason if self.should_stop else None,
                "callbacks": [_callback_state(callback) for callback in self.callbacks],
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint's state.

        Raises:
            ValueError: the callbacks differ from those that were saved.
        """
        own = state["trainer"]
        stateful = [each for each in self.callbacks if hasattr(each, "state_dict")]
        entries = [entry for entry in own["callbacks"] if entry["state"] is not None]
        names, saved = [type(each).__name__ for each in stateful], [entry["name"] for entry in entries]
        if names != saved:
            raise ValueError(
                f"the checkpoint was saved with callbacks {saved}; this trainer has {names}. Give the same."
            )
        self.agent.load_state_dict(state["agent"])
        self.agent.buffer.load_state_dict(state["buffer"])
        self.streams.load_state_dict(own["streams"])
        self.sampler.load_state_dict(state["sampler"])
        self.counters = Counters(**own["counters"])
        self.episodes.load_state_dict(own["episodes"])
        self.loop_seconds, self.evaluation_seconds = own["loop_seconds"], own["evaluation_seconds"]
        if "guard" in own:
            self.guard.load_state_dict(own["guard"])
        for callback, entry in zip(stateful, entries, strict=True):
            callback.load_state_dict(entry["state"])
        self._resumed = True
        set_global_state(own["globals"])

    def close(self) -> None:
        """Release the environment and the callbacks' files."""
        try:
            self.sampler.close()
        finally:
            for callback in self.callbacks:
                getattr(callback, "close", _nothing)()


def _nothing() -> None:
    """For callbacks that hold nothing open."""


def _callback_state(callback: Any) -> dict[str, Any]:
    state = callback.state_dict() if hasattr(callback, "state_dict") else None
    return {"name": type(callback).__name__, "state": state}
