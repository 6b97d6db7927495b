"""UniArena with its environments in a producer process: the same settings, and the time taken between two chunks.

The environments are in another process, so the stopwatch is the trainer's: from the chunk that ends at step `first` to
the one that ends at step `last`. The processor's time is that of both processes.
"""

from __future__ import annotations

from run_uniarena import watched
from stopwatch import arguments

if __name__ == "__main__":
    watched(arguments(), {"type": "pipelined"})
