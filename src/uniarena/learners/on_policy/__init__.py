"""On-policy learners: they consume each rollout once."""
