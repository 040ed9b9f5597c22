"""The arms of arXiv:2603.05498 that small decoders are trained in: their numbers, tables, curves and words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.core.experiment import Figure, Point, median
from attnscope.papers.trials.sinks_and_spikes import over_seeds

Record = Mapping[str, Any]
PLAIN = "pre-norm"
OTHERS = "pre-norm of other seeds"  # says whether sinks and spikes grow here at all; compared with nothing
REMEDIES: Mapping[str, dict[str, Any]] = {
    PLAIN: {},
    "sandwich norm": {"parts": ("sandwich_norm",)},
    "sandwich + QK norm": {"parts": ("sandwich_norm", "qk_norm")},
    "DynamicTanh": {"parts": ("dynamic_tanh",)},
    "conditional gate": {"parts": ("conditional_gate",)},
}
# Perplexity, share of sinks and spike of the paper's 7B models: for the eye, and for the direction of a change.
PUBLISHED = {
    PLAIN: (10.1, 0.460, 3818.0),
    "sandwich norm": (9.8, 0.447, 520.0),
    "sandwich + QK norm": (10.0, 0.420, 92.0),
    "DynamicTanh": (10.0, 0.610, 153.0),
    "conditional gate": (math.nan, 0.045, math.nan),
}
SINKS_FROM = 0.2  # the sink rate from which we say that a model has sinks
PUBLISHED_WIDTHS = {8: 0.041, 16: 0.098, 32: 0.279, 64: 0.377, 128: 0.460}


def ratio(found: Sequence[Record], arm: str, what: str, beside: str = PLAIN) -> list[float]:
    """A remedy's number over that of plain pre-norm with the same seed: of spikes, which are never 0."""
    pairs = zip(over_seeds(found, arm, what), over_seeds(found, beside, what), strict=True)
    return [mine / plain for mine, plain in pairs]


def above_half(found: Sequence[Record], arm: str, what: str) -> list[float]:
    """By how much a remedy's number is above half of plain pre-norm's with the same seed. A sink rate can be 0, and a
    ratio to it is no number; nor are seeds left out, because the seeds in which sinks grew by chance would be kept."""
    pairs = zip(over_seeds(found, arm, what), over_seeds(found, PLAIN, what), strict=True)
    return [mine - plain / 2 for mine, plain in pairs]


def less(found: Sequence[Record], arm: str, what: str, beside: str = PLAIN) -> list[float]:
    return [
        mine - plain for mine, plain in zip(over_seeds(found, arm, what), over_seeds(found, beside, what), strict=True)
    ]


def key(arm: str) -> str:
    return arm.lower().replace(" + ", "_and_").replace(" ", "_").replace("-", "_").replace(".", "")


def width_name(width: int) -> str:
    return f"head width {width}"


def numbers_of(needed: Sequence[str], widths: Sequence[int], grew: Sequence[Record]) -> dict[str, list[float]]:
    """What the claims ask of the models that were trained."""
    numbers: dict[str, list[float]] = {}
    for arm in dict.fromkeys(one["arm"] for one in grew):
        for what in ("loss", "sink_rate", "spike", "spike_over_median"):
            numbers[f"{what}_of_{key(arm)}"] = over_seeds(grew, arm, what)
        if all(one["floor"] for one in grew if one["arm"] == arm):  # a book has no known least loss
            numbers[f"excess_loss_of_{key(arm)}"] = [one["loss"] - one["floor"] for one in grew if one["arm"] == arm]
    for arm in REMEDIES:
        if arm != PLAIN:
            numbers[f"loss_added_by_{key(arm)}"] = less(grew, arm, "loss")
            numbers[f"spike_ratio_of_{key(arm)}"] = ratio(grew, arm, "spike")
            numbers[f"sink_rate_added_by_{key(arm)}"] = less(grew, arm, "sink_rate")
            numbers[f"sink_rate_above_half_with_{key(arm)}"] = above_half(grew, arm, "sink_rate")
    for arm in needed:
        numbers[f"sink_rate_lost_with_{key(arm)}"] = less(grew, PLAIN, "sink_rate", arm)
    narrow, wide = width_name(min(widths)), width_name(max(widths))
    two = [over_seeds(grew, arm, "sink_rate") for arm in (narrow, wide)]
    numbers["larger_sink_rate_of_both_widths"] = [max(rates) for rates in zip(*two, strict=True)]
    numbers["sink_rate_added_by_wide_heads"] = less(grew, wide, "sink_rate", narrow)
    numbers["spike_ratio_of_qk_norm_beside_sandwich"] = ratio(grew, "sandwich + QK norm", "spike", "sandwich norm")
    return numbers | ends(numbers)


def ends(numbers: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """The least and the largest of all seeds, of what compares two arms: a claim on its sign asks every seed. NaN where
    one seed has none."""
    found: dict[str, list[float]] = {}
    for name, values in numbers.items():
        if any(word in name for word in ("_added_by_", "_ratio_of_", "_lost_with_")):
            broken = any(map(math.isnan, values))
            found[f"least_{name}"] = [math.nan if broken else min(values)]
            found[f"largest_{name}"] = [math.nan if broken else max(values)]
    return found


def remedies_figure(grew: Sequence[Record]) -> Figure:
    rows = []
    for arm in REMEDIES:
        perplexity, sinks, spike = PUBLISHED[arm]
        for what, published in (("sink rate", sinks), ("spike", spike), ("loss", math.log(perplexity))):
            rows.append(Point.over(over_seeds(grew, arm, what.replace(" ", "_")), arm, f"{what}, here"))
            rows.append(Point(arm, published, f"{what}, 7B"))
    caption = (
        "Here: median over seeds, nats per token on a copying task. 7B: as published, nats per token of text (the log "
        "of the perplexity). The two scales have nothing in common but the direction from row to row."
    )
    return Figure("remedies", "Norms and gates, trained alike", caption, "", "", tuple(rows), "table")


def streams_figure(grew: Sequence[Record]) -> Figure:
    rows = []
    for arm in REMEDIES:
        seeds = [one["top_channels"] for one in grew if one["arm"] == arm]
        rows += [Point.over([one[k][0] for one in seeds], k / 2, arm) for k in range(len(seeds[0]))]
    caption = "The largest entry after every half block; median and range over seeds."
    axes = ("blocks done", "largest |x| in the stream")
    return Figure("streams", "Where streams step up", caption, *axes, tuple(rows), log=True)


def widths_figure(widths: Sequence[int], grew: Sequence[Record]) -> Figure:
    rows = [Point.over(over_seeds(grew, width_name(w), "sink_rate"), w, "here") for w in widths]
    rows += [Point(width, rate, "7B, published", dashed=True) for width, rate in PUBLISHED_WIDTHS.items()]
    caption = "Median and range over seeds. Dashed: the paper's models, of which only the direction can be compared."
    return Figure(
        "head-widths", "Sinks by the width of heads", caption, "head width", "sink rate", tuple(rows), log_x=True
    )


def needed_figure(needed: Sequence[str], grew: Sequence[Record]) -> Figure:
    rows = [
        Point.over(over_seeds(grew, arm, what), "as trained here" if arm == PLAIN else arm, said)
        for arm in (PLAIN, *needed)
        for what, said in (
            ("sink_rate", "sink rate"),
            ("spike", "spike"),
            ("spike_over_median", "spike / median"),
            ("loss", "loss"),
            ("floor", "least possible loss"),
        )
        if not (what == "floor" and median(over_seeds(grew, arm, what)) == 0)
    ]
    caption = "One thing changed at a time; medians over seeds. A book has no known least loss."
    return Figure("needed", "What sinks and spikes need to appear", caption, "", "", tuple(rows), "table")


def said_of_need(needed: Sequence[str], numbers: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """What was needed, in words that the numbers fill."""
    if not needed:
        return ()
    base = median(numbers[f"sink_rate_of_{key(PLAIN)}"])
    if base < SINKS_FROM:
        return (f"Trained as here, the sink rate is {base:.2f}: no sinks, so that nothing can be said of their needs.",)
    rates = {arm: median(numbers[f"sink_rate_of_{key(arm)}"]) for arm in needed}
    gone = [f"{arm} ({rate:.2f})" for arm, rate in rates.items() if rate <= base / 2]
    kept = [f"{arm} ({rate:.2f})" for arm, rate in rates.items() if rate > base / 2]
    return (
        f"Trained as here, the sink rate is {base:.2f}. It falls to half or less with: {', '.join(gone) or 'nothing'}. "
        f"It stays above half with: {', '.join(kept) or 'nothing'}.",
    )


def practice(numbers: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """One paragraph of what to do with it, in words that the numbers fill."""
    spikes = {arm: median(numbers[f"spike_ratio_of_{key(arm)}"]) for arm in REMEDIES if arm != PLAIN}
    sinks = {arm: median(numbers[f"sink_rate_of_{key(arm)}"]) for arm in REMEDIES}
    losses = {arm: median(numbers[f"loss_added_by_{key(arm)}"]) for arm in REMEDIES if arm != PLAIN}
    said = "; ".join(
        f"{arm} leaves {spikes[arm]:.2f} of the spike and a sink rate of {sinks[arm]:.2f}, for {losses[arm]:+.3f} nats"
        for arm in spikes
    )
    return (
        f"In practice: a spike and a sink are two things, and one can go without the other. Beside pre-norm, whose "
        f"sink rate is {sinks[PLAIN]:.2f}, {said}. Where large entries are the trouble (low precision), a norm behind "
        "each branch is what to try first; where resting heads are, look at both numbers (attnscope scan) before and "
        "after a remedy, because what holds for billions of weights need not hold for yours.",
    )
