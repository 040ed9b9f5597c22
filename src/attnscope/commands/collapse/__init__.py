"""Measure how the differences between tokens shrink with depth."""
