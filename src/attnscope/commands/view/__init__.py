"""The attention of one text, every head, in eight bits a weight."""
