"""Coverage-guided fuzzing of everything that reads a file: `make fuzz`."""
