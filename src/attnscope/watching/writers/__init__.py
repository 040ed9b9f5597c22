"""Where looks go beside the run record: TensorBoard, Weights & Biases, trackio. One file a writer, no torch here.

A writer writes to its logger directly: a framework's own reporting runs before callbacks are asked, and what is added
to its logs there never arrives. Each has `open(header)`, `write(look)` and `close()`; `names.py` says what scalars and
images are called, the same in all of them.
"""
