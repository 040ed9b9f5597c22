"""One file per way to explain; every file here is found and registered by its name."""
