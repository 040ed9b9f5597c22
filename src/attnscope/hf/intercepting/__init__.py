"""Observe attention calls in torch functions and in transformers' registry, without changing their results."""
