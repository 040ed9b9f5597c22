"""Judge which explanation is faithful to a model."""
