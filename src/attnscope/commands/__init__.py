"""One folder per command: `run.py` is its Python function, `record.py` its result, `words.py` describes the result."""
