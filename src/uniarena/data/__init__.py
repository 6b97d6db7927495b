"""Data for learning offline: one loader for every format, an account of what was found, and recordings of our own."""

from uniarena.data.config import DataConfig
from uniarena.data.dataset import Dataset, Episode
from uniarena.data.errors import DataError
from uniarena.data.loading import load
from uniarena.data.recording import Recorder

__all__ = ["DataConfig", "DataError", "Dataset", "Episode", "Recorder", "load"]
