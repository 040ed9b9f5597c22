"""Changes to a model that undo themselves: cuts, grafts, frozen networks."""
