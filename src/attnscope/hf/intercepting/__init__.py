"""Seeing attention happen, at the level of torch functions and of transformers' registry."""
