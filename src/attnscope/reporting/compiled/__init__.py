"""A compiled head, read by a person."""
