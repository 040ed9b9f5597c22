"""The attention maps of every head on one text, with eight bits per weight."""
