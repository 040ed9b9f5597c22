"""Which heads carry a task, read by a person."""
