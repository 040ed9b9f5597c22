"""A collapse, read by a person."""
