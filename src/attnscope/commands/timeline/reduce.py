"""Reduce the heads of a block to one number, as the alarm of the measure watches them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnscope.commands.timeline.record import Key, Timeline
from attnscope.commands.watch.look import RunHeader
from attnscope.core.card import Card

RELATIVE = ("inactive_heads",)  # relative to the block's mean, which is always 1, so the smallest head matters


LEVEL_RULES = {  # the alarm whose `level` is the limit of a measure
    "entropy": "entropy_collapse",
    "relative_residual": "layers_collapsing",
    "sink_mass": "sinks_forming",
    "max_logit": "max_logit_growth",
}


def card_of(timeline: Timeline, key: Key) -> Card:
    """Return the card of a measure from any run, with the limit of the run's own alarm; or an empty card."""
    for run in timeline.runs:
        if key[0] in run.header.measures:
            return with_level(run.header.measures[key[0]], run.header)
    infinite = float("inf")
    measure, part, _, site = key
    return Card(
        measure, measure, "", "", -infinite, infinite, citation="", scope="attention", parts=(part,), sites=(site,)
    )


def with_level(card: Card, header: RunHeader) -> Card:
    """Return the card with the level at which the run's alarm rings, so that a page states one limit for a measure."""
    settings = header.settings.get("thresholds")
    rule = settings.get(LEVEL_RULES.get(card.name, "")) if isinstance(settings, dict) else None
    level = rule.get("level") if isinstance(rule, dict) else None
    if card.alarm is None or not isinstance(level, int | float):
        return card
    return replace(card, alarm=replace(card.alarm, threshold=float(level)))


def worry(card: Card) -> str:
    """Return how to reduce the heads of a block: "largest" or "smallest", whichever the alarm watches, else "mean"."""
    if card.name in RELATIVE:
        return "smallest"
    return "mean" if card.alarm is None else "largest" if card.alarm.relation == ">" else "smallest"


def of_heads(numbers: np.ndarray, rows_of: str) -> np.ndarray:
    """Reduce [looks, layers, heads] to [looks, layers]: mean, smallest or largest of the heads; NaN if all are
    missing.
    """
    if numbers.ndim == 2:
        return numbers
    known = np.isfinite(numbers)
    none = ~known.any(axis=2)
    if rows_of == "mean":
        made = np.where(known, numbers, 0.0).sum(axis=2) / np.maximum(known.sum(axis=2), 1)
    elif rows_of == "smallest":
        made = np.where(known, numbers, np.inf).min(axis=2, initial=np.inf)
    else:
        made = np.where(known, numbers, -np.inf).max(axis=2, initial=-np.inf)
    return np.where(none, np.nan, made)
