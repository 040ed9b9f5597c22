"""Find the stacks, blocks, attention calls and projections of a model by running it, without tables of names."""
