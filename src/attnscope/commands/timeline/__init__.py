"""What attention did while a model was trained: a folder with a header and a line for each look, and its record.

    run/run.json       the header: which model, which stacks, which measures, which settings; written whole
    run/looks.jsonl    one line per look, appended; each line is whole or absent, also after kill -9
    run/run.lock       there while somebody writes

`RunLog` writes a run, `read_run` reads one, also while it is written, and `Timeline` is the record. No torch here.
"""
