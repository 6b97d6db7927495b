"""Value functions."""
