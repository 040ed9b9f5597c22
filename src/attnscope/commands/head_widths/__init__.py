"""How wide each head of a model must be for what it attends to."""
