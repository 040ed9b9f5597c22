"""All that a person reads, one folder for each record: words, terminal, page. No torch here."""
