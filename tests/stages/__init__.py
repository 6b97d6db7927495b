"""Runs in stages, and what an online run takes from data."""
