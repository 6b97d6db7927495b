"""The guard: NaN, infinite and huge numbers are found before they reach an optimiser's step, and a rule is applied."""

from uniarena.trainer.guard.guard import Guard

__all__ = ["Guard"]
