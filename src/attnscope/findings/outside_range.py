"""Outside range: a number lies far outside what any healthy real model of the same kind shows.

Ranges come from the atlas, without the model that is judged. A number counts if it is beyond the most extreme place of
all other models by a margin: a share of the whole range, on the scale on which the measure is drawn.

Only measures in `JUDGED` count. Their numbers do not change if the stream, or the weights on both sides of it, are
rescaled, as architectures do at will: T5 and Moonshine have entries above 2,000 and healthy losses, because nothing
keeps their stream small. Shares of attention have an upper bound and cannot be far outside.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.atlas.ranges import Reference, reference
from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import grids
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import blocks, count, number

FEWEST = 12  # models behind a range that can call something wrong
JUDGED = ("norm_growth",)


@finding(
    order=25,
    reads=(),
    summary="Numbers far outside what any healthy real model of the same kind shows.",
    citation="the atlas in this package (`attnscope atlas`)",
    severity="wrong: no healthy real model of the same kind comes near this number",
)
def outside_range(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    if survey.provenance.get("model", {}).get("weights") == "random":
        return  # random weights are not a healthy model, and known to be none
    for name, card in survey.cards.items():
        if name not in JUDGED:
            continue
        for grid in grids(survey, name, card.parts[0]):
            usual = reference(survey, name, card.parts[0], grid.stack, grid.site, of_size=False)
            if usual is None or usual.models < FEWEST:
                continue
            far = beyond(grid.means, usual, log=card.log, margin=thresholds.range_margin)
            if not far.any():
                continue
            worst = float(grid.means[far][np.argmax(np.abs(grid.means[far] - usual.median))])
            layers = tuple(sorted({int(place[0]) for place in np.argwhere(far)}))
            many = f" in {blocks(layers)}"
            if far.sum() > 1:
                many = f" in {count(int(far.sum()), 'place')} ({blocks(layers)})"
            yield Finding(
                kind=outside_range.name,
                severity="wrong",
                stack=grid.stack,
                layers=layers,
                heads=grid.chosen(far) if far.ndim == 2 else (),
                sentence=(
                    f"{card.title}{grid.tail} is {number(worst)}{many}, far outside what {usual.models} real"
                    f" {usual.kind} show ({number(usual.lowest)} to {number(usual.highest)})."
                ),
                value=worst,
                threshold=usual.highest if worst > usual.highest else usual.lowest,
                threshold_name="range of the atlas",
                citation=outside_range.citation,
                advice=(
                    "Compare this block with the same one of a checkpoint that works (`attnscope compare`). If the text"
                    " is unlike what the model was trained on, scan it on other text first."
                ),
                details={"measure": name, "site": grid.site, "block": layers[0]},
            )


def beyond(values: NDArray[np.float64], usual: Reference, *, log: bool, margin: float) -> NDArray[np.bool_]:
    """Return where values lie outside the extremes by more than a share `margin` of the range between them."""
    ends = np.array([usual.lowest, usual.highest])
    if log:
        tiny = 1e-30
        values, ends = np.log(np.maximum(values, tiny)), np.log(np.maximum(ends, tiny))
    room = margin * max(float(ends[1] - ends[0]), 1e-12)
    with np.errstate(invalid="ignore"):
        return np.asarray((values > ends[1] + room) | (values < ends[0] - room))
