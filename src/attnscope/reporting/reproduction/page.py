"""The page of a reproduction: claims, expectations, numbers and verdicts, then the figures; one file, no script.

Charts are drawn while the page is written, in the theme whose colours are CSS variables, so that one drawing serves
light and dark. All text is escaped, and the Content-Security-Policy allows the one style sheet by its hash and nothing
else: there is no script to run and no network to reach.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from attnscope import __version__
from attnscope.charts.numerals import numeral
from attnscope.core.experiment import Claim, Figure, Number, median

if TYPE_CHECKING:
    from attnscope.reproducing.reproduce import Reproduction

STYLES = {"reproduced": "good", "not reproduced": "missed", "contradicted": "bad", "not run": "none"}


def render(done: Reproduction) -> str:
    """The page as text."""
    from attnscope.charts.palette import SERIES
    from attnscope.reporting.document import environment, flat, policy

    templates = environment()
    style = templates.get_template("reproduction.css").render(series=SERIES)
    return templates.get_template("reproduction.html").render(
        policy=policy(style),
        style=style,
        version=__version__,
        experiment=done.experiment,
        preset=done.preset,
        seeds=done.seeds,
        seconds=f"{done.seconds:.0f} s" if done.seconds < 120 else f"{done.seconds / 60:.0f} min",
        counts={verdict: count for verdict, count in done.counts.items() if count},
        styles=STYLES,
        claims=[(claim, measured_words(claim)) for claim in done.claims],
        remarks=done.result.remarks,
        figures=[(figure, drawn(figure)) for figure in done.result.figures],
        params=sorted(flat(asdict(done.experiment.presets[done.preset]))),
    )


def measured_words(claim: Claim) -> tuple[str, ...]:
    """One line for every quantity of a claim: `sort accuracy 0.98 (0.97 to 0.99 over 5 seeds)`."""
    return tuple(_spread(name, values) for name, values in claim.measured.items())


def _spread(name: str, values: tuple[Number, ...]) -> str:
    numbers = [value for value in values if value is not None]
    words = f"{name.replace('_', ' ')} {numeral(median(values))}"
    if len(set(values)) < 2 or not numbers:
        return words
    return f"{words} ({numeral(min(numbers))} to {numeral(max(numbers))} over {len(values)} seeds)"


def drawn(figure: Figure) -> str:
    """The figure as SVG that takes its colours from the page."""
    from attnscope.charts.experiment_figure import experiment_figure
    from attnscope.reporting.survey.figures import drawing

    return drawing(experiment_figure(figure, title=False), figure.name)
