"""Draw the figures of a reproduction by name."""

from __future__ import annotations

from typing import Any

from attnscope.commands.reproduce.record import Reproduction
from attnscope.core.errors import RefusalError, nearest
from attnscope.reports.experiment_figure import experiment_figure


def chart(reproduction: Reproduction, name: str | None = None, *, title: bool = True) -> Any:
    """Draw the figure called `name`, by default the first."""
    if not reproduction.figures:
        raise RefusalError(
            f"This reproduction of {reproduction.experiment} has no figure to draw: read its table instead."
        )
    named = {figure.name: figure for figure in reproduction.figures}
    figure = reproduction.figures[0] if name is None else named.get(name)
    if figure is None:
        raise RefusalError(f"There is no figure called '{name}'.{nearest(str(name), named)}")
    return experiment_figure(figure, title=title)
