"""What `attnscope explain` does: which part of the input decided."""
