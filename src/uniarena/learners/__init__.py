"""Learners: what turns experience into better parameters. One file per algorithm."""
