"""What depth does to a model: residual against depth, and what paths of each length contribute."""
