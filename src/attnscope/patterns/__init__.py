"""Sparse attention patterns, heads that realise them, certificates and bounds (arXiv:2106.03764)."""
