"""Watch a model in training: a look every so many steps, alarms, and a run folder."""
