"""Texts whose decisive word is known, because exchanging it alone flips the model's answer."""
