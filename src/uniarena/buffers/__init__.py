"""Buffers: where experience waits between sampler and learner."""
