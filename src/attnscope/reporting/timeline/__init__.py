"""What a person reads of a timeline: words, terminal, page, live screen."""
