"""The command line: parse, import lazily, call, print."""
