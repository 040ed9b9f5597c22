"""The pictures of a reproduction: its figures, by name."""

from __future__ import annotations

from typing import Any

from attnscope.charts.experiment_figure import experiment_figure
from attnscope.core.errors import RefusalError, nearest
from attnscope.records.reproduction import Reproduction


def chart(found: Reproduction, name: str | None = None, *, title: bool = True) -> Any:
    """The figure of that name (`[figure.name for figure in found.figures]`); without one, the first."""
    named = {figure.name: figure for figure in found.figures}
    if not named:
        raise RefusalError(f"This reproduction of {found.experiment} has no figure: there is nothing to draw.")
    if name is None:
        return experiment_figure(found.figures[0], title=title)
    if name not in named:
        raise RefusalError(f"There is no figure called '{name}'.{nearest(name, named)}")
    return experiment_figure(named[name], title=title)
