"""A survey as a tidy pandas frame: one row for each measure, part, place and head."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.records.survey.cell import Cell
from attnscope.records.survey.survey import Survey

if TYPE_CHECKING:
    import pandas

PLACE = ("measure", "part", "stack", "site", "layer", "head")
NUMBERS = ("count", "mean", "std", "min", "max", "p10", "p50", "p90", "nonfinite", "peak")
COLUMNS = (*PLACE, *NUMBERS, "peak_where", "usual")


def table(survey: Survey) -> pandas.DataFrame:
    """`head` is <NA> for stream measures; `usual` holds the most common token, channel or key of a located value."""
    import pandas

    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for key, cell in survey.cells.items():
        heads = math.prod(cell.shape)
        for name, value in zip(PLACE[:-1], key, strict=True):
            columns[name] += [value] * heads
        columns["head"] += list(range(heads)) if cell.shape else [None]
        for name, numbers in _numbers(cell).items():
            columns[name] += np.ravel(numbers).tolist()
        columns["peak_where"] += cell.peak.places()
        columns["usual"] += cell.usual()
    text = dict.fromkeys(PLACE[:4], "str")
    return pandas.DataFrame(
        {
            name: pandas.Series(
                values,
                dtype=text.get(name)
                or {"layer": "int64", "head": "Int64", "count": "int64", "nonfinite": "int64"}.get(name)
                or ("float64" if name in NUMBERS else "object"),
            )
            for name, values in columns.items()
        }
    )


def _numbers(cell: Cell) -> dict[str, Any]:
    """NaN where nothing finite was seen."""
    seen = cell.moments.count > 0
    return {
        "count": cell.moments.count,
        "mean": cell.moments.mean,
        "std": cell.moments.std,
        "min": np.where(seen, cell.moments.minimum, np.nan),
        "max": np.where(seen, cell.moments.maximum, np.nan),
        "p10": cell.quantile(0.1),
        "p50": cell.quantile(0.5),
        "p90": cell.quantile(0.9),
        "nonfinite": cell.moments.nonfinite,
        "peak": np.where(seen, cell.peak.value, np.nan),
    }
