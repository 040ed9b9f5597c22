"""Compare surveys with the first one as the baseline."""
