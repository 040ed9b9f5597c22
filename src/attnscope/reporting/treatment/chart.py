"""The picture of a treatment: what the remedy was meant to change, or whichever is asked for."""

from __future__ import annotations

from typing import Any

from attnscope.charts.experiment_figure import experiment_figure
from attnscope.core.errors import RefusalError, nearest
from attnscope.records.treatment import Treatment
from attnscope.reporting.treatment.figures import figures


def chart(found: Treatment, name: str | None = None, *, width: int = 1000) -> Any:
    """`name` is heads, training, loss or pruning, where the treatment has it; without it the most telling one."""
    there = {one.name: one for one in figures(found)}
    if not there:
        raise RefusalError("This treatment has nothing to draw: look at its sentences.")
    if name is not None and name not in there:
        raise RefusalError(f"This treatment has no chart '{name}'.{nearest(name, there)}")
    return experiment_figure(there[name or next(iter(there))], width=width)
