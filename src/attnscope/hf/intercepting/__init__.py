"""Intercept attention calls, in torch functions and in transformers' registry, without changing what they compute."""
