"""Papers run again: experiments, the small models and trials they need, and what runs them. Only `cli` imports this."""
