"""The record of a reproduced paper and its page; `papers/` runs the experiments."""
