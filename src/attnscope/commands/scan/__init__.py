"""Scanning: a model and a corpus in, a survey out."""
