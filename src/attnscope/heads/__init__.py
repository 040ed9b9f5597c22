"""Heads that realise patterns: precision, rounding, certificates, bounds, files."""
