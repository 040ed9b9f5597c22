"""Solvers that find queries and keys: projections, interpolation, margins, descent."""
