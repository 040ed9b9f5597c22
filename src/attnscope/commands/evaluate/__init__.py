"""What a person reads of how faithful explanations are: words, terminal, page."""
