"""Pictures of runs: what is to be seen is computed in `data` and `probe`, and drawn in `draw`, which needs an extra."""
