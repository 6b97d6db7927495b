"""The environment of a run, from its config section; and the account of one that cannot be made."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uniarena.assembly.absent import refuse, stand_in
from uniarena.config import ConfigError, Experiment, Section
from uniarena.config.errors import text_of
from uniarena.data import DataError
from uniarena.envs import WorkerError, drawing, make_env
from uniarena.envs.protocol import Env
from uniarena.envs.simulators import tensor_form
from uniarena.envs.wrappers import record_video
from uniarena.seeding import preserved_globals

PACKAGE = Path(__file__).parent.parent


def build_env(
    exp: Experiment,
    num_envs: int | None = None,
    *,
    training: bool = False,
    extra: Sequence[Section] = (),
    run_dir: Path | None = None,
) -> Env:
    """The environment of the run with its wrappers.

    Args:
        num_envs: overrides the number of instances.
        training: leave `record_video` out, which is for evaluation episodes.
        extra: wrapper sections around the config's.
        run_dir: the run's folder, where videos go unless they are sent elsewhere.

    Raises:
        ConfigError: it cannot be made; where its own code raised, that error is the cause.
    """
    section = exp.environment
    if section.id is None and not training:
        raise refuse("playing episodes")
    given = [*section.wrappers, *extra]
    records = [wrapper for wrapper in given if wrapper["type"] == "record_video"]
    videos = {"folder": str((run_dir or Path()) / "videos")}
    wrappers = [
        Section({**videos, **wrapper}) if wrapper in records else wrapper
        for wrapper in given
        if not (training and wrapper in records)
    ]
    kwargs = dict(section.kwargs)
    draws = bool(records) and not training and "render_mode" not in kwargs
    if draws and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        # pygame looks for a screen even where none is needed
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    with exp.locating():
        try:
            return _make(exp, num_envs, wrappers, {**kwargs, "render_mode": "rgb_array"} if draws else kwargs)
        except ConfigError as error:
            if not draws or error.path != "environment.kwargs.render_mode":
                raise
            return _make(exp, num_envs, wrappers, kwargs)  # the wrapper says what is missing


def can_be_drawn(exp: Experiment) -> bool:
    """Whether the run's environment surely gives pictures; nothing is made to find out."""
    section = exp.environment
    if section.id is None:
        return False
    try:
        return drawing.can_be_drawn(section.id, section.kwargs)
    except Exception:  # code of the user's, asked for a remark alone
        return False


def refuse_undrawn(exp: Experiment) -> None:
    """Refuse to record an environment that gives no picture, before training and not at the first evaluation.

    Raises:
        ConfigError: it gives none.
    """
    section = {"type": "record_video"}
    if exp.environment.id is None:
        return
    wrapped = any(wrapper["type"] == section["type"] for wrapper in exp.environment.wrappers)
    if not wrapped and all(callback["type"] != "video" for callback in exp.callbacks):
        return
    where = "environment.wrappers.record_video" if wrapped else "callbacks.video"
    with exp.locating(), preserved_globals():
        env = build_env(exp, 1, extra=() if wrapped else (Section(section),))
        try:
            record_video.refuse_undrawn(env, where)
        finally:
            env.close()


def _make(exp: Experiment, num_envs: int | None, wrappers: Sequence[Section], kwargs: dict[str, Any]) -> Env:
    section = exp.environment
    if section.id is None:
        return make_env(stand_in(exp), wrappers=wrappers)
    if (
        section.vectorization == "tensor"
        and isinstance(section.id, str)
        and tensor_form(section.id) is not None
    ):
        from uniarena.assembly import choose_device

        kwargs = {"device": choose_device(exp.training.device), **kwargs}  # beside the networks
    try:
        return make_env(
            section.id,
            num_envs or section.num_envs,
            wrappers=wrappers,
            vectorization=section.workers or section.vectorization,
            kwargs=kwargs,
            max_episode_steps=section.max_episode_steps,
            action_mask=section.action_mask,
        )
    except (ConfigError, DataError, WorkerError):
        raise
    except Exception as error:
        raise cannot_be_made(section.id, error) from error


def cannot_be_made(spec: Any, error: Exception) -> ConfigError:
    """The error for an environment whose own code raised, or that lacks something (a refusal of ours)."""
    name = getattr(spec, "__name__", str(spec))
    lines = [
        f"{name} cannot be made: {type(error).__name__}: {text_of(error)}",
        *getattr(error, "__notes__", ()),
    ]
    last = traceback.extract_tb(error.__traceback__)[-1]
    if not Path(last.filename).is_relative_to(PACKAGE):
        lines.append(f"raised in {last.filename}:{last.lineno}: {last.line}")
    alone = f"; uniarena check-env {name} looks at it alone" if isinstance(spec, str) else ""
    return ConfigError("\n".join(lines), path="environment.id", hint=f"mend it{alone}")


def from_reset(error: Exception) -> bool:
    """Whether the first observations were refused, and not by an error that explains itself in full."""
    frames = traceback.extract_tb(error.__traceback__)
    return not isinstance(error, ConfigError) and any(
        Path(frame.filename).parent.name == "envs" for frame in frames
    )
