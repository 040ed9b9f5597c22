"""The width that the attention patterns of each head of a model need."""
