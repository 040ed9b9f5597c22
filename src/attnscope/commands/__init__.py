"""One folder a command: `run.py` is its Python twin, `record.py` what it found, `words.py` what a person reads."""
