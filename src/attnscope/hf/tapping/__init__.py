"""Frames out of a running model, verified; its output is unchanged."""
