"""What a person reads of an operator's map: words, terminal, page."""
