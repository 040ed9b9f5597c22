"""A reproduction, read by a person."""
