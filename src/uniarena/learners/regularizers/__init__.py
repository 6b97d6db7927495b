"""Terms that any learner's policy takes beside its own loss: cloning of data, nearness to another policy."""
