"""One self-contained HTML page and a terminal summary of a survey. No torch here."""
