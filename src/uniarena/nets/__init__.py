"""Neural networks that know nothing of reinforcement learning: torsos, encoders, normalisers, inference."""
