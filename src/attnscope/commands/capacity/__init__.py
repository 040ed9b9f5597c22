"""How wide a head must be, read by a person."""
