"""A decomposition into paths, read by a person."""
