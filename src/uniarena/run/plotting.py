"""Pictures of a run that is on disk, as PNG and in TensorBoard."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from uniarena import assembly
from uniarena.analysis.doctor.table import Table
from uniarena.analysis.plots import data, draw, probe
from uniarena.checkpoint import CheckpointError
from uniarena.run.folder import METRICS, run_folder
from uniarena.run.saved import UNUSED_SEEDS, load_with_config
from uniarena.trainer.loggers.jsonl import read_rows

log = logging.getLogger("uniarena")
PICTURES = "plots"
STEPS = 2_000
"""Rows of the walk that policy and values are looked at on."""


def plot(
    run: str | Path,
    target: str | Path | None = None,
    *,
    dims: tuple[int, int] | None = None,
    trust: bool = False,
    secrets: Sequence[str] = (),
) -> list[Path]:
    """Draw curves with the bands in which figures usually are, gradient flow by layer, the policy, and predicted
    against realised returns → the files; the same pictures are added to the run's TensorBoard events.

    Args:
        target: folder of the pictures; None: `plots` in the run's folder.
        dims: two observation entries for the map of the policy; None: those that vary most.
        trust, secrets: as in `evaluate`.

    Raises:
        CheckpointError: it is no run's folder, or holds no figures.
        PlotError: matplotlib is missing.
        ConfigError: `dims` names entries that are not there.
    """
    folder = run_folder(Path(run))
    rows = read_rows(folder / METRICS)
    if not rows:
        raise CheckpointError(folder, f"holds no figures yet: {METRICS} is empty or missing.")
    table, place = Table(rows), Path(target or folder / PICTURES)
    draw.require()
    place.mkdir(parents=True, exist_ok=True)
    found = [draw.curves(data.panels(table), place / "curves.png")]
    flow = data.gradient_flow(table)
    if flow is not None:
        found.append(draw.gradients(flow, place / "gradients.png"))
    try:
        found += _of_the_agent(folder, place, dims, trust, secrets)
    except CheckpointError as error:
        log.warning("pictures of the agent are left out: %s", error)
    _to_tensorboard(folder, found, table.end)
    return found


def _of_the_agent(
    folder: Path, place: Path, dims: tuple[int, int] | None, trust: bool, secrets: Sequence[str]
) -> list[Path]:
    agent, exp = load_with_config(folder, trust, secrets)
    if exp.environment.id is None:
        log.warning("pictures of the agent are left out: the run has no environment that it could be seen in")
        return []
    env = assembly.build_env(exp, 1, run_dir=folder)
    try:
        walked = probe.walk(agent, env, STEPS, exp.experiment.seed + UNUSED_SEEDS)
    finally:
        env.close()
    found = []
    policy, worth = probe.policy_map(agent, walked, dims), probe.worth(agent, walked)
    if policy is not None:
        found.append(draw.policy(policy, place / "policy.png"))
    if worth is not None:
        found.append(draw.values(worth, place / "values.png"))
    return found


def _to_tensorboard(folder: Path, pictures: Sequence[Path], step: int) -> None:
    from uniarena.trainer.loggers.summaries import Summaries  # heavy: only where something is shown

    writer = Summaries(str(folder / "events"))
    try:
        for path in pictures:
            with Image.open(path) as picture:
                writer.add_image(
                    f"plots/{path.stem}", np.asarray(picture.convert("RGB")), step, dataformats="HWC"
                )
    finally:
        writer.close()
