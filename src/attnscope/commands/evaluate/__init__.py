"""Which explanation is faithful to a model."""
