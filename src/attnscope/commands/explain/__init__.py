"""Explain which part of the input decided an answer, by several methods."""
