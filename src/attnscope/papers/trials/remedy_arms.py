"""The arms of the experiment on arXiv:2603.05498 that train small decoders: their quantities, figures and remarks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.core.experiment import Figure, Point, median
from attnscope.papers.trials.curves import Rows, select
from attnscope.papers.trials.sinks_and_spikes import over_seeds

PLAIN = "pre-norm"
OTHERS = "pre-norm of other seeds"  # control runs that show whether sinks and spikes grow; they are not compared
REMEDIES: Mapping[str, dict[str, Any]] = {
    PLAIN: {},
    "sandwich norm": {"parts": ("sandwich_norm",)},
    "sandwich + QK norm": {"parts": ("sandwich_norm", "qk_norm")},
    "DynamicTanh": {"parts": ("dynamic_tanh",)},
    "conditional gate": {"parts": ("conditional_gate",)},
}
# Perplexity, sink rate and spike of the paper's 7B models, to show the direction of each change.
PUBLISHED = {
    PLAIN: (10.1, 0.460, 3818.0),
    "sandwich norm": (9.8, 0.447, 520.0),
    "sandwich + QK norm": (10.0, 0.420, 92.0),
    "DynamicTanh": (10.0, 0.610, 153.0),
    "conditional gate": (math.nan, 0.045, math.nan),
}
SINKS_FROM = 0.2  # a model with at least this sink rate counts as having sinks
PUBLISHED_WIDTHS = {8: 0.041, 16: 0.098, 32: 0.279, 64: 0.377, 128: 0.460}


def pairs(grew: Rows, arm: str, column: str, other: str = PLAIN) -> list[tuple[float, float]]:
    """Return the values of a column for two arms, in pairs of equal seed."""
    return list(zip(over_seeds(grew, arm, column), over_seeds(grew, other, column), strict=True))


def less(grew: Rows, arm: str, column: str, other: str = PLAIN) -> list[float]:
    return [mine - theirs for mine, theirs in pairs(grew, arm, column, other)]


def ratio(grew: Rows, arm: str, other: str = PLAIN) -> list[float]:
    """Return an arm's spike divided by the other's, per seed. A spike is never 0."""
    return [mine / theirs for mine, theirs in pairs(grew, arm, "spike", other)]


def above_half(grew: Rows, arm: str, column: str) -> list[float]:
    """Return an arm's value minus half of plain pre-norm's, per seed.

    A sink rate can be 0, so a ratio may not exist. Seeds without sinks are not left out, because that would select the
    seeds in which sinks grew by chance.
    """
    return [mine - plain / 2 for mine, plain in pairs(grew, arm, column)]


def key(arm: str) -> str:
    return arm.lower().replace(" + ", "_and_").replace(" ", "_").replace("-", "_").replace(".", "")


def width_name(width: int) -> str:
    return f"head width {width}"


def numbers_of(needed: Sequence[str], widths: Sequence[int], grew: Rows) -> dict[str, list[float]]:
    """Return the quantities of the trained models."""
    numbers: dict[str, list[float]] = {}
    for arm in dict.fromkeys(row["arm"] for row in grew):
        for column in ("loss", "sink_rate", "spike", "spike_over_median"):
            numbers[f"{column}_of_{key(arm)}"] = over_seeds(grew, arm, column)
        rows = select(grew, arm=arm)
        if all(row["floor"] for row in rows):  # a book has no known least loss
            numbers[f"excess_loss_of_{key(arm)}"] = [row["loss"] - row["floor"] for row in rows]
    for arm in REMEDIES:
        if arm != PLAIN:
            numbers[f"loss_added_by_{key(arm)}"] = less(grew, arm, "loss")
            numbers[f"spike_ratio_of_{key(arm)}"] = ratio(grew, arm)
            numbers[f"sink_rate_added_by_{key(arm)}"] = less(grew, arm, "sink_rate")
            numbers[f"sink_rate_above_half_with_{key(arm)}"] = above_half(grew, arm, "sink_rate")
    for arm in needed:
        numbers[f"sink_rate_lost_with_{key(arm)}"] = less(grew, PLAIN, "sink_rate", arm)
    narrow, wide = width_name(min(widths)), width_name(max(widths))
    both = pairs(grew, narrow, "sink_rate", wide)
    numbers["larger_sink_rate_of_both_widths"] = [max(rates) for rates in both]
    numbers["sink_rate_added_by_wide_heads"] = less(grew, wide, "sink_rate", narrow)
    numbers["spike_ratio_of_qk_norm_beside_sandwich"] = ratio(grew, "sandwich + QK norm", "sandwich norm")
    return numbers | ends(numbers)


def ends(numbers: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return the least and the largest value over seeds of every comparison of two arms; NaN if a seed is missing.

    A claim on the sign of a comparison must hold in every seed.
    """
    extremes: dict[str, list[float]] = {}
    for name, values in numbers.items():
        if any(word in name for word in ("_added_by_", "_ratio_of_", "_lost_with_")):
            broken = any(map(math.isnan, values))
            extremes[f"least_{name}"] = [math.nan if broken else min(values)]
            extremes[f"largest_{name}"] = [math.nan if broken else max(values)]
    return extremes


def remedies_figure(grew: Rows) -> Figure:
    points = []
    for arm in REMEDIES:
        perplexity, sinks, spike = PUBLISHED[arm]
        for name, published in (("sink rate", sinks), ("spike", spike), ("loss", math.log(perplexity))):
            points.append(Point.over(over_seeds(grew, arm, name.replace(" ", "_")), arm, f"{name}, here"))
            points.append(Point(arm, published, f"{name}, 7B"))
    caption = (
        "Here: median over seeds, nats per token on a copying task. 7B: as published, nats per token of text (the log "
        "of the perplexity). Compare only the direction from row to row: the two scales have nothing in common."
    )
    return Figure("remedies", "Norms and gates, trained alike", caption, "", "", tuple(points), "table")


def streams_figure(grew: Rows) -> Figure:
    points = []
    for arm in REMEDIES:
        seeds = [row["top_channels"] for row in select(grew, arm=arm)]
        points += [Point.over([top[k][0] for top in seeds], k / 2, arm) for k in range(len(seeds[0]))]
    caption = "The largest entry after every half block; median and range over seeds."
    axes = ("blocks done", "largest |x| in the stream")
    return Figure("streams", "Where streams step up", caption, *axes, tuple(points), log=True)


def widths_figure(widths: Sequence[int], grew: Rows) -> Figure:
    points = [Point.over(over_seeds(grew, width_name(width), "sink_rate"), width, "here") for width in widths]
    points += [Point(width, rate, "7B, published", dashed=True) for width, rate in PUBLISHED_WIDTHS.items()]
    caption = "Median and range over seeds. Dashed: the paper's models; compare only the direction."
    title, axes = "Sinks by the width of heads", ("head width", "sink rate")
    return Figure("head-widths", title, caption, *axes, tuple(points), log_x=True)


def needed_figure(needed: Sequence[str], grew: Rows) -> Figure:
    columns = {
        "sink_rate": "sink rate",
        "spike": "spike",
        "spike_over_median": "spike / median",
        "loss": "loss",
        "floor": "least possible loss",
    }
    points = [
        Point.over(over_seeds(grew, arm, column), "as trained here" if arm == PLAIN else arm, label)
        for arm in (PLAIN, *needed)
        for column, label in columns.items()
        if not (column == "floor" and median(over_seeds(grew, arm, column)) == 0)
    ]
    caption = "One thing changed at a time; medians over seeds. A book has no known least loss."
    return Figure("needed", "What sinks and spikes need to appear", caption, "", "", tuple(points), "table")


def needed_remarks(needed: Sequence[str], numbers: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    if not needed:
        return ()
    base = median(numbers[f"sink_rate_of_{key(PLAIN)}"])
    if base < SINKS_FROM:
        return (f"Trained as here, the sink rate is {base:.2f}: without sinks nothing can be said about their needs.",)
    rates = {arm: median(numbers[f"sink_rate_of_{key(arm)}"]) for arm in needed}
    gone = [f"{arm} ({rate:.2f})" for arm, rate in rates.items() if rate <= base / 2]
    kept = [f"{arm} ({rate:.2f})" for arm, rate in rates.items() if rate > base / 2]
    return (
        f"Trained as here, the sink rate is {base:.2f}. It falls to half or less with: {', '.join(gone) or 'nothing'}. "
        f"It stays above half with: {', '.join(kept) or 'nothing'}.",
    )


def remedies_remarks(numbers: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    def number(quantity: str, arm: str) -> float:
        return median(numbers[f"{quantity}_{key(arm)}"])

    effects = "; ".join(
        f"{arm} leaves {number('spike_ratio_of', arm):.2f} of the spike and a sink rate of "
        f"{number('sink_rate_of', arm):.2f}, for {number('loss_added_by', arm):+.3f} nats"
        for arm in REMEDIES
        if arm != PLAIN
    )
    return (
        "In practice: a spike and a sink are two things, and one can go without the other. Compared with pre-norm, "
        f"whose sink rate is {number('sink_rate_of', PLAIN):.2f}, {effects}. If large entries are the problem (low "
        "precision), try a norm behind each branch first. If resting heads are, look at both numbers (attnscope scan) "
        "before and after a remedy: what holds for billions of weights need not hold for yours.",
    )
