"""Health figures: what the newest experience and the networks say about how training goes."""

from uniarena.trainer.health.figures import FAMILIES, FIGURES, TOPICS

__all__ = ["FAMILIES", "FIGURES", "TOPICS"]
