"""The chart of a timeline: the loss with its alarms, and below it a measure as a map of blocks and steps."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from attnscope.commands.timeline.record import Key, Timeline
from attnscope.commands.timeline.step_curves import card_of, head_lines, loss_chart, step_map
from attnscope.commands.timeline.words import title_of
from attnscope.core.errors import RefusalError

WIDTH = 720


def chart(
    timeline: Timeline,
    measure: str | None = None,
    part: str = "value",
    *,
    stack: str | None = None,
    site: str | None = None,
    layer: int | None = None,
) -> Any:
    """Draw the loss and `measure`; with `layer`, also the heads of that block as lines.

    `measure` defaults to the measure of the first alarm, or to entropy.
    """
    key = timeline.key(measure, part, stack, site) if measure is not None else telling(timeline)
    if key is None:
        raise RefusalError("There is nothing to draw: this run has no look with numbers yet.")
    below = [step_map(timeline, key, WIDTH).properties(title=title_of(card_of(timeline, key), key))]
    if layer is not None:
        below.append(head_lines(timeline, key, layer, WIDTH).properties(title=f"Heads of block {layer}"))
    above = [loss_chart(timeline, WIDTH).properties(title="Loss")] if np.isfinite(timeline.losses).any() else []
    return alt.vconcat(*above, *below).resolve_scale(color="independent")


def telling(timeline: Timeline) -> Key | None:
    """Return the measure to show first: the measure of the first alarm, else entropy, else any."""
    keys = [key for key in timeline.keys if np.isfinite(timeline.numbers(key)).any()]
    for spell in timeline.alarms:
        rule = spell.alarm.rule
        here = [key for key in keys if key[2:] == (spell.alarm.stack, spell.alarm.site)]
        alike = [key for key in here if key[0] in rule or rule in key[0]]
        for key in (*alike, *(key for key in here if key[0].split("_")[0] in rule)):
            return key
    return next((key for key in keys if key[0] == "entropy"), next(iter(keys), None))
