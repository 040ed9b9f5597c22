"""What paths of each length contribute: the work of `paths`."""
