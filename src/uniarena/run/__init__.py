"""Runs: train, resume, evaluate, record, export, verify and compare, from configuration to `Result`."""

from uniarena.run.compare import Comparison, diff
from uniarena.run.examining import doctor, said
from uniarena.run.on_data import evaluate_on_data
from uniarena.run.plotting import plot
from uniarena.run.profiling import profile
from uniarena.run.recording import record_data
from uniarena.run.result import Result, SeedsReport, figures
from uniarena.run.resuming import NothingToDo
from uniarena.run.saved import VIDEOS, evaluate, export, record
from uniarena.run.seeds import is_of_seeds, resume_seeds, train_seeds
from uniarena.run.training import read, resume, train
from uniarena.run.tuning import tune_sampling
from uniarena.run.verify import Verdict, verify

__all__ = [
    "VIDEOS",
    "Comparison",
    "NothingToDo",
    "Result",
    "SeedsReport",
    "Verdict",
    "diff",
    "doctor",
    "evaluate",
    "evaluate_on_data",
    "export",
    "figures",
    "is_of_seeds",
    "plot",
    "profile",
    "read",
    "record",
    "record_data",
    "resume",
    "resume_seeds",
    "said",
    "train",
    "train_seeds",
    "tune_sampling",
    "verify",
]
