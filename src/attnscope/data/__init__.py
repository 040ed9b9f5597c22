"""Text in: files, folders, standard input, the embedded book. No torch here."""
