"""TensorBoard event files: scalars, histograms, the model graph, evaluation videos."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from uniarena.config import config

__all__ = ["Tensorboard", "TensorboardConfig"]

_log = logging.getLogger(__name__)
_LARGEST_VIDEO = 20_000_000  # bytes; larger pictures make the browser crawl


@config
class TensorboardConfig:
    """Figures as TensorBoard events."""

    folder: str = "events"  # name inside the run folder


class Tensorboard:
    """Writes event files under `<run>/events`, with environment steps as the x-axis.

    A resumed run begins a new file that hides whatever the interrupted one wrote after its last checkpoint.
    """

    Config = TensorboardConfig
    every_iteration: ClassVar[bool] = False

    def __init__(self, cfg: TensorboardConfig) -> None:
        self.cfg = cfg
        self._writer: Any = None

    def open(self, run_dir: Path, step: int) -> None:
        from uniarena.trainer.loggers.summaries import Summaries  # heavy: only where a run is logged

        self._writer = Summaries(str(run_dir / self.cfg.folder), step + 1 if step else None)

    def _write(self, add: Callable[[Any], Any]) -> None:
        """Let the writer add something; it is written at once.

        Raises:
            OSError: the disk refuses; these figures are lost here (`metrics.jsonl` keeps its own).
        """
        if self._writer is not None:
            add(self._writer)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write figures as one event: there are tens of them, and an event takes as long as several figures."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary()
        for name, value in values.items():
            summary.value.add(tag=_tag(name), simple_value=value)
        self._write(lambda writer: writer._get_file_writer().add_summary(summary, step))

    def layout(self, topics: Mapping[str, Mapping[str, list[str]]]) -> None:
        """Group figures: topic → chart → names, as the tab "Custom scalars" shows them."""
        charts = {
            topic: {title: ["Multiline", [_tag(name) for name in names]] for title, names in groups.items()}
            for topic, groups in topics.items()
        }
        self._write(lambda writer: writer.add_custom_scalars(charts))

    def histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Name → array of any shape; NaN and infinities are left out, and names without a finite value
        too.
        """
        finite = {}
        for name, array in values.items():
            flat = np.asarray(array, dtype=np.float64).reshape(-1)
            flat = flat[np.isfinite(flat)]
            if flat.size:
                finite[name] = flat
        self._write(lambda writer: [writer.add_histogram(name, flat, step) for name, flat in finite.items()])

    def graph(self, module: torch.nn.Module, example: Any) -> None:
        """The graph of `module(example)`, traced; a module that cannot be traced costs a notice, not the
        run.
        """
        if self._writer is None:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the tracer, about itself and about branches in Python
                self._writer.add_graph(module, example, use_strict_trace=False)
        except OSError:
            raise
        except Exception as error:  # tracing runs the user's own module and fails in many ways
            _log.warning("the model's graph could not be drawn: %s", str(error).splitlines()[0])

    def video(self, step: int, name: str, path: Path) -> None:
        """Show a GIF; TensorBoard plays no other format, so others stay files of the run folder."""
        if self._writer is None or path.suffix != ".gif" or path.stat().st_size > _LARGEST_VIDEO:
            return
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        with Image.open(path) as picture:
            width, height = picture.size
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes()
        )
        summary = Summary(value=[Summary.Value(tag=name, image=image)])
        # add_video would ask for moviepy
        self._write(lambda writer: writer._get_file_writer().add_summary(summary, step))

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _tag(name: str) -> str:
    """Figures without a group of their own are those of training."""
    return name if "/" in name else f"training/{name}"
