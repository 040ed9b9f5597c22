"""The course of attention over a training run, read from run folders and checkpoints.

    run/run.json       the header: which model, which stacks, which measures, which settings; written whole
    run/looks.jsonl    one line per look, appended; each line is whole or absent, also after kill -9
    run/run.lock       present while a process writes

`RunLog` (in `commands.watch.run_folder`) writes a run. `read_run` reads one, also while it is being written. No torch
here.
"""
