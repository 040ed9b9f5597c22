"""The labelled, mergeable, self-describing result of a scan, its file, and what it says. No torch here."""
