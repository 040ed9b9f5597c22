"""Two surveys side by side, read by a person."""
