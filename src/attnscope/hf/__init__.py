"""The only room that imports transformers: load, anatomy, tap, verify."""
