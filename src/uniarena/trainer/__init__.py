"""The one training loop, its events and schedule."""

from uniarena.trainer.schedule import Counters, OnPolicySchedule
from uniarena.trainer.trainer import Trainer

__all__ = ["Counters", "OnPolicySchedule", "Trainer"]
