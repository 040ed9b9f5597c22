"""Everything that imports transformers: load a model, find its anatomy, tap it, and verify the result."""
