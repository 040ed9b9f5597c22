"""The page of a reproduction: claims, expectations, numbers and verdicts, then the figures; one file."""

from __future__ import annotations

from attnscope.charts.experiment_figure import experiment_figure
from attnscope.records.reproduction import Reproduction
from attnscope.reporting.document import page, rows
from attnscope.reporting.drawing import drawn_to_fit
from attnscope.reporting.reproduction.words import measured_words, verdict

STYLES = {"reproduced": "calm", "not reproduced": "warning", "contradicted": "critical", "not run": "info"}


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
