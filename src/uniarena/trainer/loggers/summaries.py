"""Torch's summary writer on an event file that is written at once.

The only file that imports torch.utils.tensorboard.
"""

from __future__ import annotations

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from torch.utils.tensorboard import FileWriter, SummaryWriter

from uniarena.trainer.loggers.event_file import EventFile


class Summaries(SummaryWriter):
    """Scalars, histograms, graphs and layouts as events.

    Args:
        folder: where the file goes.
        purge: step from which on events of earlier files are hidden; None: of none.
    """

    def __init__(self, folder: str, purge: int | None = None) -> None:
        super().__init__(folder, purge_step=purge)

    def _get_file_writer(self) -> FileWriter:
        found: FileWriter | None = self.file_writer
        if found is None:
            found = self.file_writer = _Files(self.log_dir)  # type: ignore[assignment]
            self.all_writers = {self.log_dir: found}  # type: ignore[assignment]
            found.add_event(Event(file_version="brain.Event:2"), self.purge_step)
            if self.purge_step is not None:
                found.add_event(Event(session_log=SessionLog(status=SessionLog.START)), self.purge_step)
            self.purge_step = None
        return found


class _Files(FileWriter):
    """What torch's writer hands its events to."""

    def __init__(self, folder: str) -> None:
        self.event_writer = EventFile(folder)
