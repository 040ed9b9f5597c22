"""The narrowest head that realises a sparse pattern, with a certificate."""
