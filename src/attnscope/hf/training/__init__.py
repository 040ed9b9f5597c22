"""Where transformers trains: its callbacks."""
