"""What a collapse says, in plain sentences: the terminal and the page print the same ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnscope.core.numerals import numeral
from attnscope.core.words import count
from attnscope.records.collapse import Collapse
from attnscope.records.published import Published
from attnscope.reporting.verdict import Level, Verdict

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


def sentences(found: Collapse) -> tuple[str, ...]:
    """One on every variant, one on how fast attention alone collapses, one on what skips guarantee."""
    said = [_variant(name, curve.mean, float(found.floor)) for name, curve in found.curves.items()]
    said += _order(found)
    said += _skips(found)
    return tuple(said)


def _variant(name: str, mean: Sequence[float], floor: float) -> str:
    subject = SUBJECTS[name]
    known = [(depth, value) for depth, value in enumerate(mean) if math.isfinite(value)]
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


def _order(found: Collapse) -> list[str]:
    if not math.isfinite(found.order) or not found.pairs:
        return []
    layers = f"fitted over {found.pairs} readings of single layers; the theory says 3"
    return [
        f"One layer of attention alone takes a small spread d of its tokens to about d^{found.order:.2f} ({layers})."
    ]


def _skips(found: Collapse) -> list[str]:
    rows = found.skip_bounds
    if not rows:
        return []
    safe = sum(row.strength < 1 for row in rows)
    if not safe:
        return ["What skips guarantee is nothing here: the strength of bound (d) is 1 or more in every layer."]
    return [
        f"With its skip and the patterns seen here, attention cannot collapse the stream it writes to in {safe} of "
        f"{count(len(rows), 'layer')} (d)."
    ]


BOUND_HEADING = ("layer", "diameter", "(a)", "(c)", "residual", "theorem 2.2", "note")


def bound_lines(found: Collapse) -> list[tuple[str, ...]]:
    """Truth and bounds of every layer of attention alone, under a heading; bounds that speak nowhere are left out."""
    lines: list[tuple[str, ...]] = [BOUND_HEADING]
    for row in found.bounds:
        note = ""
        if row.spread is not None and row.condition_met is not None and row.condition_met < row.sequences:
            note = f"condition violated (spread {numeral(row.spread)} > 1.256)"
        if row.after <= 16 * row.rounding:
            note = "; ".join(filter(None, (note, "the truth is rounding")))
        if row.violations:
            note = "; ".join(filter(None, (note, f"{row.violations} BOUNDS VIOLATED")))
        lines.append(
            (
                str(row.layer),
                numeral(row.after),
                numeral(row.contraction),
                _figure(row.cubic),
                numeral(row.residual_after),
                _figure(row.paper),
                note,
            )
        )
    told = [place for place, cells in enumerate(zip(*lines, strict=True)) if {*cells[1:]} - {"–", ""}]
    return [tuple(line[place] for place in told) for line in lines] if found.bounds else []


def end_lines(found: Collapse) -> list[tuple[str, ...]]:
    """Bounds over all layers: which, of which variant and quantity, truth, bound, whether it applies."""
    return [
        (
            BOUND_TITLES[end.name],
            f"{end.variant}, {end.of}",
            power_of_ten(end.truth[-1]),
            power_of_ten(end.bound[-1]) if end.applies else f"({power_of_ten(end.bound[-1])})",
            "applies" if end.applies else f"no bound here: {end.why_not}",
        )
        for end in found.ends
    ]


def power_of_ten(exponent: float) -> str:
    """`4.2e-5` where a number can be read, `10^152` where it cannot; the logarithm of zero is minus infinite."""
    if not math.isfinite(exponent):
        return "infinite" if exponent > 0 else "0"
    return numeral(10.0**exponent) if abs(exponent) < 7 else f"10^{exponent:,.0f}"


def _figure(value: float | None) -> str:
    return "–" if value is None else numeral(value)


def published_words(found: Collapse, published: Published) -> tuple[str, ...]:
    """How far these curves are from the published ones, variant by variant, and why they need not agree."""
    said, model = [], published.model
    for name, theirs in published.curves.items():
        if name not in found.curves:
            continue
        ours = found.curves[name].mean
        pairs = [
            (abs(a - b), depth, a, b)
            for depth, (a, b) in enumerate(zip(ours, theirs, strict=False))
            if math.isfinite(a)
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


def shape_words(found: Collapse) -> str:
    """`12 layers of 12 heads, norm pre, random weights`."""
    return f"{found.layers} layers of {found.heads} heads, norm {found.norm_placement}, {found.weights_words}"


def corpus_words(found: Collapse) -> str:
    """`pocket's text, 32 sequences of up to 128 tokens, 1,inf norm`."""
    corpus = found.provenance["corpus"]
    return f"{corpus['name']}, {corpus['sequences']} sequences of up to {found.tokens} tokens, {found.norm} norm"


def verdict(found: Collapse) -> Verdict:
    """What becomes of the model itself, or of the most complete variant that was run."""
    name, curve = list(found.curves.items())[-1]
    collapsed = any(math.isfinite(value) and value < COLLAPSED for value in curve.mean)
    level: Level = "critical" if collapsed and name == "whole" else "calm"
    return Verdict(level, _variant(name, curve.mean, float(found.floor)))
