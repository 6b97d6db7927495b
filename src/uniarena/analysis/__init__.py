"""Reading runs: statistics over episodes and seeds."""
