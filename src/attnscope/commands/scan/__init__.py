"""Measure every block and head of a model over a corpus: a survey."""
