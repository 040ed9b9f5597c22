"""The command line: parse arguments, call the Python function of a command, and print its record."""
