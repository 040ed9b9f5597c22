"""Change a model temporarily: cut parts out, plant heads, freeze it at one input."""
