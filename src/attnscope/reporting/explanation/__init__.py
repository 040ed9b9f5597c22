"""What a person reads of an explanation: words, terminal, page."""
