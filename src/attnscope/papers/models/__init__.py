"""Small readable models to experiment on."""
