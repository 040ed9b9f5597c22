"""The chart of a timeline: the loss with its alarms, and below it a measure as a map of blocks and steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from attnscope.commands.timeline.bands import departures
from attnscope.commands.timeline.record import Key, Timeline
from attnscope.commands.timeline.reduce import card_of
from attnscope.commands.timeline.step_curves import head_lines, loss_chart, step_map
from attnscope.commands.timeline.words import title_of
from attnscope.commands.watch.look import Alarm
from attnscope.commands.watch.rule import rules
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
    """Return the measure to show first.

    It is the measure that the first alarm reads, else the first that left its band, else that of a note, else entropy.
    """
    keys = [key for key in timeline.keys if np.isfinite(timeline.numbers(key)).any()]
    loud = [spell for spell in timeline.alarms if spell.alarm.severity != "note"]
    left = [one.key for one in departures(timeline) if one.key is not None]
    read = [key for spell in loud for key in _read_by(spell.alarm, keys)]
    noted = [key for spell in timeline.alarms for key in _read_by(spell.alarm, keys)]
    usual = [key for key in keys if key[0] == "entropy"]
    return next(iter((*read, *left, *noted, *usual, *keys)), None)


def _read_by(alarm: Alarm, keys: Sequence[Key]) -> list[Key]:
    """Return the keys that the rule of an alarm reads, at the place of the alarm."""
    rule = rules().get(alarm.rule)
    return [key for key in keys if key[2:] == (alarm.stack, alarm.site) and rule is not None and key[0] in rule.reads]
