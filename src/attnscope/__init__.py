"""attnscope shows what attention in a transformer does and whether depth is destroying it."""

__version__ = "0.1.0"
