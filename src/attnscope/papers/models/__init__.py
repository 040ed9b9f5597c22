"""Small, readable models used by the experiments."""
