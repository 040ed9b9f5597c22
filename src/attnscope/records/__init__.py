"""What each command found, as typed values with a file format. No torch here."""
