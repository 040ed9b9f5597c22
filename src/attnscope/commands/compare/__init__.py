"""Surveys side by side, the first as the baseline."""
