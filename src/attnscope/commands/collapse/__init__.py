"""What depth does to the differences between tokens."""
