"""What watches a run. A callback is any object with some of the methods `on_<event>(trainer, event)`.

The order of a list of callbacks counts where one reads what another reports: `Evaluate` and `Monitor` first, then
early stop, video and your own, then `Log` and `Progress`, and last `Checkpoint`, which saves the state of all of
them.
"""

from uniarena.trainer.callbacks.checkpoint import Checkpoint
from uniarena.trainer.callbacks.early_stop import EarlyStop
from uniarena.trainer.callbacks.evaluate import Evaluate
from uniarena.trainer.callbacks.log import Log
from uniarena.trainer.callbacks.monitor import Monitor
from uniarena.trainer.callbacks.progress import Progress
from uniarena.trainer.callbacks.rules import Rules
from uniarena.trainer.callbacks.video import Video

__all__ = ["Checkpoint", "EarlyStop", "Evaluate", "Log", "Monitor", "Progress", "Rules", "Video"]
