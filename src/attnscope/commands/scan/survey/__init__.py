"""Surveys: labelled sums of measurements that merge, their file and their provenance. No torch here."""
