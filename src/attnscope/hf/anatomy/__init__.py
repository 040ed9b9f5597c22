"""Where things are in a model, found by running it, not by name tables."""
