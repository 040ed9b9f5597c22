"""A remedy tried on a model: diagnosed, changed, trained beside a control, and measured again."""
