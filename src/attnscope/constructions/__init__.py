"""One file per construction: a way to build a head for a pattern."""
