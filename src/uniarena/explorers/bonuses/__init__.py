"""Intrinsic motivation: bonuses for reaching what is new."""
