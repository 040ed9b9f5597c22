"""Driving experiments: presets, seeds, checkpoints, and the page that shows verdicts beside claims."""
