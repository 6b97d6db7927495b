"""Off-policy learners: they learn from replayed experience, whoever gathered it."""
