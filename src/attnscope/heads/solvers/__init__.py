"""How queries and keys are found: projections, interpolation, margins, descent."""
