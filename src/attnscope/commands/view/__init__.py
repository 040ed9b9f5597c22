"""The attention of one text, every head: maps made in row blocks by the tap, kept in eight bits a weight."""
