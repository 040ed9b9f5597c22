"""Charts as data: Altair specifications made from surveys, exported without a browser. No torch here."""
