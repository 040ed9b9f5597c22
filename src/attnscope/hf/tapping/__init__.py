"""Get frames from a running model without changing its output, and verify them."""
