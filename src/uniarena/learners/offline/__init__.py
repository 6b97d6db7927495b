"""Learners from data that others gathered."""
