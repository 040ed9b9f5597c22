"""Ignored media: words pay almost no attention to pictures or sounds (Chen et al. 2024, arXiv:2403.06764, section 3).

In deep blocks of vision-language models, picture tokens are most of the keys and get very little attention. The
baseline is uniform attention over the same tokens, so a short picture in a long text, a window, or words before their
picture do not count as neglect.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import grid_at, grids
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import blocks, percent


@finding(
    order=75,
    reads=("media_attention",),
    summary="Blocks in which words hardly attend to pictures or sounds.",
    citation="arXiv:2403.06764",
    severity="note: it describes what heads do",
    neutral=True,
)
def media_ignored(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "media_attention", "from_text"):
        even = grid_at(survey, "media_attention", grid.stack, grid.site, "from_text_if_uniform")
        if even is None:
            continue
        share, fair = (
            np.nansum(value.means, axis=1) / value.means.shape[1] for value in (grid, even)
        )  # blocks without heads have 0
        ignoring = tuple(int(n) for n in np.flatnonzero(share < thresholds.media_share * fair))
        if not ignoring:
            continue
        least = min(ignoring, key=lambda layer: share[layer] / fair[layer])
        yield Finding(
            kind=media_ignored.name,
            severity="note",
            stack=grid.stack,
            layers=ignoring,
            heads=(),
            sentence=(
                f"In {blocks(ignoring)}{grid.tail} words give tokens of pictures or sound less than"
                f" {percent(thresholds.media_share)} of what uniform attention would; lowest in block"
                f" {least}: {percent(share[least])} of their attention, where uniform attention would give "
                f"{percent(fair[least])}."
            ),
            value=float(share[least] / fair[least]),
            threshold=thresholds.media_share,
            threshold_name="media_share",
            citation=media_ignored.citation,
            advice=(
                "Normal in deep blocks of vision-language models, because words have read the picture in earlier "
                "blocks. From such a block on, picture tokens can often be dropped at little loss; measure that "
                "before relying on it. In the first blocks it means that the pictures are not read at all."
            ),
            details={"measure": "media_attention", "site": grid.site, "block": least},
        )
