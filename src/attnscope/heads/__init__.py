"""Patterns, the heads that realise them, certificates, lower bounds, solvers and files."""
