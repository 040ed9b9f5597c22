"""Load a model by name, and turn corpora into batches for it."""
