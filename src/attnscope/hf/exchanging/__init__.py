"""Install a variant of attention in a model, and restore the model."""
