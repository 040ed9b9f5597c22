"""What a model shows while it runs: frames, batches and padding."""
