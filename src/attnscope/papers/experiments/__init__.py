"""Experiments that test the claims of papers: one file per paper, with its parameters, its claims and its code."""
