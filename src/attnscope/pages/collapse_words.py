"""What a collapse document says, in plain sentences: the terminal and the page print the same ones.

`data` is `Collapse.to_json()`; nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.charts.numerals import numeral
from attnscope.survey.words import count

COLLAPSED = 1e-3  # a residual this small beside the tokens: they are one token, for all that follows
SUBJECTS = {
    "san": "Attention alone",
    "san+mlp": "Attention with MLPs",
    "san+skip": "Attention with skips",
    "whole": "The whole model",
}
BOUND_TITLES = {
    "contraction": "(a) contraction of the patterns seen",
    "cubic": "(c) cubic, from weights alone",
    "theorem 2.3": "the paper's theorem 2.3",
    "corollary 3.2": "the paper's corollary 3.2",
}


def sentences(data: Mapping[str, Any]) -> tuple[str, ...]:
    """One on every variant, one on how fast attention alone collapses, one on what skips guarantee."""
    said = [_variant(name, curve["mean"], float(data["floor"])) for name, curve in data["curves"].items()]
    said += _order(data)
    said += _skips(data)
    return tuple(said)


def _variant(name: str, mean: Sequence[float | None], floor: float) -> str:
    subject = SUBJECTS[name]
    known = [(depth, value) for depth, value in enumerate(mean) if value is not None]
    if not known:
        return f"{subject} gave no finite number."
    depths, (last, value) = len(mean) - 1, known[-1]
    rounding = next((depth for depth, v in known if v <= 8 * floor), None)
    if rounding is not None:
        below = 10 * _ten(8 * floor)
        return (
            f"{subject} collapses: after {count(rounding, 'layer')} the residual is below {numeral(below)}, where "
            "rounding begins."
        )
    if value < COLLAPSED:
        first = next(depth for depth, v in known if v < COLLAPSED)
        return (
            f"{subject} collapses: the residual is below {numeral(COLLAPSED)} after {count(first, 'layer')} and "
            f"{numeral(value)} after all {depths}."
        )
    kept = value / known[0][1] if known[0][1] else 1.0
    verb = "keeps its tokens apart" if kept >= 0.5 else "loses most of what tells its tokens apart"
    start = f"from {numeral(known[0][1])} to {numeral(value)}"
    end = "" if last == depths else f" (depth {last}; no finite number after it)"
    return f"{subject} {verb}: the residual goes {start} over {count(depths, 'layer')}{end}."


def _ten(value: float) -> float:
    """The power of ten at or below a number."""
    power = 1.0
    while power > value:
        power /= 10
    return power


def _order(data: Mapping[str, Any]) -> list[str]:
    if data["order"] is None or not data["pairs"]:
        return []
    layers = f"fitted over {data['pairs']} readings of single layers; the theory says 3"
    return [
        f"One layer of attention alone takes a small spread d of its tokens to about d^{data['order']:.2f} ({layers})."
    ]


def _skips(data: Mapping[str, Any]) -> list[str]:
    rows = data["skip_bounds"]
    if not rows:
        return []
    safe = sum(row["strength"] < 1 for row in rows)
    if not safe:
        return ["What skips guarantee is nothing here: the strength of bound (d) is 1 or more in every layer."]
    return [
        f"With its skip and the patterns seen here, attention cannot collapse the stream it writes to in {safe} of "
        f"{count(len(rows), 'layer')} (d)."
    ]


BOUND_HEADING = ("layer", "diameter", "(a)", "(c)", "residual", "theorem 2.2", "note")


def bound_lines(data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Truth and bounds of every layer of attention alone, under a heading; bounds that speak nowhere are left out."""
    lines: list[tuple[str, ...]] = [BOUND_HEADING]
    for row in data["bounds"]:
        note = ""
        if row["condition_met"] is not None and row["condition_met"] < row["sequences"]:
            note = f"condition violated (spread {numeral(row['spread'])} > 1.256)"
        if row["after"] <= 16 * row["rounding"]:
            note = "; ".join(filter(None, (note, "the truth is rounding")))
        if row["violations"]:
            note = "; ".join(filter(None, (note, f"{row['violations']} BOUNDS VIOLATED")))
        lines.append(
            (
                str(row["layer"]),
                numeral(row["after"]),
                numeral(row["contraction"]),
                _figure(row["cubic"]),
                numeral(row["residual_after"]),
                _figure(row["paper"]),
                note,
            )
        )
    told = [place for place, cells in enumerate(zip(*lines, strict=True)) if {*cells[1:]} - {"–", ""}]
    return [tuple(line[place] for place in told) for line in lines] if data["bounds"] else []


def end_lines(data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Bounds over all layers: which, of which variant and quantity, truth, bound, whether it applies."""
    return [
        (
            BOUND_TITLES[end["name"]],
            f"{end['variant']}, {end['of']}",
            power_of_ten(end["truth"][-1]),
            power_of_ten(end["bound"][-1]) if end["applies"] else f"({power_of_ten(end['bound'][-1])})",
            "applies" if end["applies"] else f"no bound here: {end['why_not']}",
        )
        for end in data["ends"]
    ]


def power_of_ten(exponent: float | None) -> str:
    """`4.2e-5` where a number can be read, `10^152` where it cannot; None is the logarithm of zero."""
    if exponent is None:
        return "0"
    return numeral(10.0**exponent) if abs(exponent) < 7 else f"10^{exponent:,.0f}"


def _figure(value: float | None) -> str:
    return "–" if value is None else numeral(value)


def published_words(data: Mapping[str, Any], reference: Mapping[str, Sequence[float]], model: str) -> tuple[str, ...]:
    """How far these curves are from the published ones, variant by variant, and why they need not agree."""
    said = []
    for name, theirs in reference.items():
        if name not in data["curves"]:
            continue
        ours = data["curves"][name]["mean"]
        pairs = [
            (abs(a - b), depth, a, b) for depth, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a is not None
        ]
        if pairs:
            apart, depth, a, b = max(pairs)
            said.append(
                f"{SUBJECTS[name]}: at most {numeral(apart)} from the published {model} (depth {depth}: {numeral(a)} "
                f"here, {numeral(b)} there)."
            )
    if model == "Albert":
        said.append(
            "The paper's Albert without MLPs keeps their activation (x + gelu(x) in every layer), which holds its "
            "attention + skip up; here MLPs are out whole."
        )
    said.append(
        "The paper measured 32 sequences of 128 tokens of other text, with other seeds, in float32, to four decimals; "
        "curves of random weights depend on how weights are drawn."
    )
    return tuple(said)
