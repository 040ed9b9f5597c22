"""One file per explanation; every file here is found and registered by its name."""
