"""Contributions of paths of each length to a prediction, and values of heads."""
