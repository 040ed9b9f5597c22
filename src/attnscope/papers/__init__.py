"""Reproductions of papers: experiments, the models and trials they use, and their runner. Only `cli` imports this."""
