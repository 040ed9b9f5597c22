"""The page of a reproduction: claims, expectations, numbers and verdicts, then the figures; one file, no script.

Charts are drawn while the page is written, in the theme whose colours are CSS variables, so that one drawing serves
light and dark. All text is escaped, and the Content-Security-Policy allows the one style sheet by its hash and nothing
else: there is no script to run and no network to reach.
"""

from __future__ import annotations

from attnscope import __version__
from attnscope.charts.experiment_figure import experiment_figure
from attnscope.charts.palette import SERIES
from attnscope.core.experiment import Figure
from attnscope.records.reproduction import Reproduction
from attnscope.reporting.document import environment, flat, policy
from attnscope.reporting.reproduction.words import measured_words
from attnscope.reporting.survey.figures import drawing

STYLES = {"reproduced": "good", "not reproduced": "missed", "contradicted": "bad", "not run": "none"}


def render(found: Reproduction) -> str:
    """The page as text. Equal records give equal pages."""
    templates = environment()
    style = templates.get_template("reproduction.css").render(series=SERIES)
    return templates.get_template("reproduction.html").render(
        policy=policy(style),
        style=style,
        version=__version__,
        found=found,
        seconds=f"{found.seconds:.0f} s" if found.seconds < 120 else f"{found.seconds / 60:.0f} min",
        counts={verdict: count for verdict, count in found.counts.items() if count},
        styles=STYLES,
        claims=[(claim, measured_words(claim)) for claim in found.claims],
        figures=[(figure, drawn(figure, f"figure-{place}")) for place, figure in enumerate(found.figures)],
        params=sorted(flat(found.params)),
    )


def drawn(figure: Figure, mark: str = "figure") -> str:
    """The figure as SVG that takes its colours from the page. `mark` keeps its parts apart from those of others; it is
    not the figure's name, which comes from a file and would stand in the page as it is."""
    return drawing(experiment_figure(figure, title=False), mark)
