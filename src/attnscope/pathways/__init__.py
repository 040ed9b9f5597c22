"""What paths of each length contribute: a frozen network followed exactly through its own code (arXiv:2103.03404)."""
