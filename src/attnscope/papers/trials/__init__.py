"""The parts of experiments that are too long for one file."""
