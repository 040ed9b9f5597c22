"""The whole model at one input as one linear operator, and its maps."""
