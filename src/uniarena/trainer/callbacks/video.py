"""Videos of evaluation episodes."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Annotated, Any, Literal

from uniarena.config import Between, config
from uniarena.sampling.evaluation import evaluate_agent
from uniarena.seeding import preserved_globals
from uniarena.trainer.callbacks.frequency import Every
from uniarena.trainer.events import IterationEnd, TrainingEnd, TrainingStart

__all__ = ["Video", "VideoConfig"]

_log = logging.getLogger(__name__)
Count = Annotated[int, Between(1)]


@config
class VideoConfig:
    """Recording of evaluation episodes."""

    every_env_steps: Count | None = None  # environment steps between recordings; None: only at the end
    n_episodes: Count = 1  # episodes per recording
    deterministic: bool = True  # the mode of the policy; false: samples of it
    fps: Count = 30  # frames per second of playback
    format: Literal["gif", "mp4", "auto"] = "gif"  # TensorBoard shows gif only; mp4 needs the video extra
    max_episode_steps: Count = 2000  # a longer episode is cut


class Video:
    """Records episodes into `<run>/videos/<env_steps>-000000.gif` and shows them in TensorBoard.

    They run in an environment of their own with the training pipeline and a `record_video` wrapper around it.
    """

    Config = VideoConfig

    def __init__(self, cfg: VideoConfig | None = None, **fields: Any) -> None:
        self.cfg: VideoConfig = replace(cfg or VideoConfig(), **fields)
        self._every = Every(self.cfg.every_env_steps)
        self._recorded_at = -1

    def on_training_start(self, trainer: Any, event: TrainingStart) -> None:
        if trainer.run_dir is not None:
            _ = trainer.env_factory  # where none can be made, it is said now and not after hours

    def on_iteration_end(self, trainer: Any, event: IterationEnd) -> None:
        if self._every.due(trainer.counters.clock):
            self._record(trainer)

    def on_training_end(self, trainer: Any, event: TrainingEnd) -> None:
        if event.reason != "interrupted" and self._recorded_at != trainer.counters.clock:
            self._record(trainer)

    def _record(self, trainer: Any) -> None:
        if trainer.run_dir is None:
            return
        step = self._recorded_at = trainer.counters.clock
        cfg, seed = self.cfg, trainer.streams.seed_for(f"video/{step}")
        wrapper = {
            "type": "record_video",
            "folder": str(trainer.run_dir / "videos"),
            "prefix": f"{step}",
            "max_videos": cfg.n_episodes,
            "fps": cfg.fps,
            "format": cfg.format,
        }
        try:
            with preserved_globals():
                env = trainer.env_factory(num_envs=1, seed=seed, wrappers=[wrapper])
                try:
                    result = evaluate_agent(
                        trainer.agent,
                        env,
                        cfg.n_episodes,
                        deterministic=cfg.deterministic,
                        seed=seed,
                        max_episode_steps=cfg.max_episode_steps,
                    )
                finally:
                    env.close()
        except OSError as error:
            _log.error("no video at %s env steps, training goes on: %s", f"{step:,}", error)
            return
        _log.info("recorded at %s env steps, %s", f"{step:,}", result)
        self._show(trainer, step, env.files[: cfg.n_episodes])

    @staticmethod
    def _show(trainer: Any, step: int, files: list[Any]) -> None:
        for callback in trainer.callbacks:
            show = getattr(callback, "video", None)
            if show is not None:
                for index, path in enumerate(files):
                    show(step, f"videos/{index}", path)

    def state_dict(self) -> dict[str, Any]:
        return {"every": self._every.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._every.load_state_dict(state["every"])
