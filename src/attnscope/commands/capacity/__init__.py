"""Measure how wide a head must be to attend to any k of n tokens."""
