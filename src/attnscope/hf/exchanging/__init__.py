"""Install other attention in a model, and restore the model."""
