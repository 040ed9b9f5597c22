"""The picture of a timeline: the loss with its alarms, and below it a measure as a map of layers and steps."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from attnscope.commands.timeline.record import Key, Timeline
from attnscope.commands.timeline.step_curves import (
    card_of,
    head_lines,
    loss_chart,
    step_map,
)
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
    """The loss, and below it `measure`; with `layer`, its heads as lines too. Without a measure, the one that the first
    alarm is about, or the first of attention."""
    key = timeline.key(measure, part, stack, site) if measure is not None else telling(timeline)
    if key is None:
        raise RefusalError("There is nothing to draw: this run has no look with numbers yet.")
    below = [step_map(timeline, key, WIDTH).properties(title=title_of(card_of(timeline, key), key))]
    if layer is not None:
        below.append(head_lines(timeline, key, layer, WIDTH).properties(title=f"Heads of block {layer}"))
    above = [loss_chart(timeline, WIDTH).properties(title="Loss")] if np.isfinite(timeline.losses).any() else []
    return alt.vconcat(*above, *below).resolve_scale(color="independent")


def telling(timeline: Timeline) -> Key | None:
    """Which measure tells most at first sight: that of the first alarm, else entropy, else any of attention."""
    keys = [key for key in timeline.keys if np.isfinite(timeline.numbers(key)).any()]
    for spell in timeline.alarms:
        name = spell.alarm.rule
        for key in keys:
            if key[2:] == (spell.alarm.stack, spell.alarm.site) and (key[0] in name or name in key[0]):
                return key
        for key in keys:
            if key[2:] == (spell.alarm.stack, spell.alarm.site) and key[0].split("_")[0] in name:
                return key
    return next((key for key in keys if key[0] == "entropy"), next(iter(keys), None))
