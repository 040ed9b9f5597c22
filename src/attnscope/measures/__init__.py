"""One file per measure; every file here is found and registered by its name."""
