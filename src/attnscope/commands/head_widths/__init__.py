"""How wide the heads of a model would have to be, read by a person."""
