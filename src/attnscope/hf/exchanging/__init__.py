"""Other attention put into a model, and taken out again."""
