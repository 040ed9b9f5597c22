"""Re-running what papers claim: one file per paper, its parameters on top and its claims at the bottom."""
