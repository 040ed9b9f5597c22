"""A survey, read by a person."""
