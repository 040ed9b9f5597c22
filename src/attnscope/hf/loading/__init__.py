"""From what a person typed to a model in memory, with what is known about it."""
