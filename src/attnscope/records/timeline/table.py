"""A timeline as a tidy pandas frame: one row for each run, look, measure, part, place and head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnscope.records.timeline.timeline import Key, Timeline

if TYPE_CHECKING:
    import pandas

COLUMNS = ("run", "step", "loss", "measure", "part", "stack", "site", "layer", "head", "value")


def table(timeline: Timeline) -> pandas.DataFrame:
    """Rows without a number are left out."""
    import pandas

    frames = [_frame(run, key) for run in timeline.runs for key in run.keys]
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return pandas.DataFrame({name: [] for name in COLUMNS})
    return pandas.concat(frames, ignore_index=True)


def _frame(run: Timeline, key: Key) -> pandas.DataFrame:
    import pandas

    numbers = run.numbers(key)
    there = np.isfinite(numbers)
    places = np.argwhere(there)
    head = places[:, 2] if numbers.ndim == 3 else [None] * len(places)
    measure, part, stack, site = key
    return pandas.DataFrame(
        {
            "run": run.name,
            "step": run.steps[places[:, 0]],
            "loss": run.losses[places[:, 0]],
            "measure": measure,
            "part": part,
            "stack": stack,
            "site": site,
            "layer": places[:, 1],
            "head": pandas.array(head, dtype="Int64"),
            "value": numbers[there],
        }
    )
