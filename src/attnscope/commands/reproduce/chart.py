"""The pictures of a reproduction: its figures, by name."""

from __future__ import annotations

from typing import Any

from attnscope.commands.reproduce.record import Reproduction
from attnscope.core.errors import RefusalError, nearest
from attnscope.reports.experiment_figure import experiment_figure


def chart(found: Reproduction, name: str | None = None, *, title: bool = True) -> Any:
    """Draw the figure called `name`, or the first; `[figure.name for figure in found.figures]` are the names."""
    if not found.figures:
        raise RefusalError(f"This reproduction of {found.experiment} has no figure: there is nothing to draw.")
    named = {figure.name: figure for figure in found.figures}
    figure = found.figures[0] if name is None else named.get(name)
    if figure is None:
        raise RefusalError(f"There is no figure called '{name}'.{nearest(str(name), named)}")
    return experiment_figure(figure, title=title)
