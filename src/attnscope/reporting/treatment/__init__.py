"""A treatment, read by a person."""
