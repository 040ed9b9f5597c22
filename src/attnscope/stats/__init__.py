"""Mergeable summaries of numbers: exact moments, histograms, quantile sketches. No torch here."""
