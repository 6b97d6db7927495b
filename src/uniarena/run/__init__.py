"""Runs: train, resume, evaluate, record and export, from configuration to `Result`."""

from uniarena.run.result import Result, SeedsReport, figures
from uniarena.run.saved import evaluate, export, record
from uniarena.run.training import NothingToDo, read, resume, train, train_seeds

__all__ = [
    "NothingToDo",
    "Result",
    "SeedsReport",
    "evaluate",
    "export",
    "figures",
    "read",
    "record",
    "resume",
    "train",
    "train_seeds",
]
