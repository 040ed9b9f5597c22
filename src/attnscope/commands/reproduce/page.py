"""The page of a reproduction: claims, expectations, numbers and verdicts, then the figures; one file."""

from __future__ import annotations

from typing import Any

from attnscope.commands.reproduce.record import Reproduction
from attnscope.commands.reproduce.words import measured_words, verdict
from attnscope.core.errors import RefusalError, nearest
from attnscope.reports.document import rows
from attnscope.reports.experiment_figure import experiment_figure
from attnscope.reports.export import drawn_to_fit
from attnscope.reports.page import page

# The pictures of a reproduction: its figures, by name.


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


STYLES = {"reproduced": "calm", "not reproduced": "warning", "contradicted": "critical", "not run": "note"}


def render(found: Reproduction) -> str:
    """The page as text. Equal records give equal pages."""
    figures = [
        # Named by place: the name of a figure comes from a file, and would stand in the page as it is.
        drawn_to_fit(
            lambda width, figure=figure: experiment_figure(figure, title=False, width=width),  # type: ignore[misc]
            f"figure-{place}",
            title=figure.title,
            caption=figure.caption,
        )
        for place, figure in enumerate(found.figures)
    ]
    return page(
        "reproduction.html",
        verdict=verdict(found),
        figures=figures,
        styles=("reproduction.css",),
        found=found,
        seconds=f"{found.seconds:.0f} s" if found.seconds < 120 else f"{found.seconds / 60:.0f} min",
        styled=STYLES,
        claims=[(claim, measured_words(claim)) for claim in found.claims],
        drawings=figures,
        provenance=[("seeds", ", ".join(map(str, found.seeds))), *sorted(rows(found.params))],
    )
