"""How a survey shows itself in a notebook: what was found, a few numbers. All text is escaped."""

from __future__ import annotations

from html import escape

import numpy as np

from attnscope.core.words import number
from attnscope.records.survey.diagnose import diagnose
from attnscope.records.survey.grid import grids
from attnscope.records.survey.survey import Survey
from attnscope.reporting.survey.words import NAMES, notes


def html(survey: Survey) -> str:
    findings = "".join(f"<li><b>{NAMES[f.severity][0]}</b> {escape(f.sentence)}</li>" for f in diagnose(survey))
    rows = "".join(
        f"<tr><th>{escape(title)}</th><td>{escape(place)}</td>"
        + "".join(f"<td>{escape(number(n))}</td>" for n in numbers)
        + "</tr>"
        for title, place, numbers in _headlines(survey)
    )
    told = "".join(f"<p><b>Note</b> {escape(note)}</p>" for note in notes(survey))
    return (
        f"{told}<ul>{findings}</ul>"
        "<table><thead><tr><th>measure</th><th>place</th><th>lowest</th><th>mean</th><th>highest</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _headlines(survey: Survey) -> list[tuple[str, str, tuple[float, float, float]]]:
    """Lowest, mean and highest over layers and heads of the first part of every measure."""
    lines = []
    for name, card in survey.cards.items():
        for grid in grids(survey, name, card.parts[0]):
            if grid.measured:
                numbers = (np.nanmin(grid.means), np.nanmean(grid.means), np.nanmax(grid.means))
                lines.append((card.title, f"{grid.stack} {grid.site}", tuple(float(n) for n in numbers)))
    return lines  # type: ignore[return-value]
