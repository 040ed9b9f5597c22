"""A reproduction with a figure of every kind, in one panel and in several."""

from __future__ import annotations

import math
from collections.abc import Callable

from attnscope.commands.reproduce.record import Reproduction
from attnscope.core.experiment import Bound, Claim, Figure, Point

MEASURED: dict[str, tuple[float, ...]] = {
    "accuracy": (0.9, 0.8, 1.0),
    "loss": (3.0, 2.0, 4.0),
    "growth": (math.nan, 1.0, 2.0),
}
CLAIMS = (
    Claim("learned", "2103.03404", "Sorting is learned.", "at least 0.8", (Bound("accuracy", ">=", 0.8),)),
    Claim("small_loss", "2103.03404", "The loss is small.", "below 1", (Bound("loss", "<", 1.0),)),
    Claim("denied", "2103.03404", "It fails.", "0", (Bound("loss", "<=", 0.1),), (Bound("loss", ">=", 0.5),)),
    Claim("left", "2103.03404", "Nobody looked.", "something", (Bound("unmeasured", ">", 0.0),)),
)


def lines(
    height: Callable[[int, int], float], panels: tuple[str, ...] = ("",), *, twin: bool = False
) -> tuple[Point, ...]:
    """Two series of eight points with bands in every panel, and with `twin` a dashed copy of the first."""
    rows = [
        Point(x, height(x, place), name, panel, 0.8 * height(x, place), 1.25 * height(x, place))
        for panel in panels
        for place, name in enumerate(("as published", "without skips"))
        for x in range(1, 9)
    ]
    if twin:
        rows += [
            Point(x, 1.1 * height(x, 0), "as published", panel, dashed=True) for panel in panels for x in (1, 4, 8)
        ]
    return tuple(rows)


def sample_reproduction() -> Reproduction:
    words = ("A figure of an experiment", "What is seen in it, in a sentence or two.", "depth", "accuracy of sorting")
    turns = tuple(
        Point(math.cos(turn / 3), math.sin(turn / 3), f"width {width}", f"seed {seed}", dashed=width == 64)
        for seed in range(3)
        for width in (8, 64)
        for turn in range(12)
    )
    bars = tuple(
        Point(name, value, series, "", 0.9 * value, 1.1 * value)
        for series, value in (("sorted", 0.9), ("memorised", 0.6))
        for name in (
            "attention only",
            "attention + MLP",
            "attention + skip",
            "whole model",
            "residual scaled",
            "window",
        )
    )
    return Reproduction(
        attnscope="0.1.0",
        experiment="sample2021",
        title="Attention is not all you need",
        paper="2103.03404",
        summary="What a paper says, run again.",
        preset="quick",
        params={"steps": 6, "rates": [0.1, 0.2]},
        seeds=(0, 1, 2),
        seconds=75.0,
        claims=tuple(claim.judged(MEASURED) for claim in CLAIMS),
        remarks=("A remark on how it was run.",),
        measured=MEASURED,
        figures=(
            Figure("one", *words, lines(lambda x, place: 0.5 + 0.04 * x - 0.1 * place)),
            Figure("log", *words, lines(lambda x, place: 10.0 ** -(x * (1 + place)), twin=True), log=True),
            Figure("panels", *words, lines(lambda x, place: float(x + place), ("BERT", "Albert", "XLNet"))),
            Figure("bars", *words, bars, "bars"),
            Figure("tracks", *words, turns, "tracks"),
        ),
    )
