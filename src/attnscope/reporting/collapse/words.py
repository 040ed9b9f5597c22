"""What a collapse says, in plain sentences: the terminal, the page and the notebook print the same ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnscope.charts.collapse_curves import place_words
from attnscope.core.numerals import numeral
from attnscope.core.words import count
from attnscope.records.collapse import Collapse
from attnscope.records.published import Published
from attnscope.reporting.collapse.grades import COLLAPSED, WORDS, Grade, graded, share_left, share_words
from attnscope.reporting.verdict import Level, Verdict

SUBJECTS = {
    "san": "Attention alone",
    "san+mlp": "Attention with MLPs",
    "san+skip": "Attention with skips",
    "whole": "The whole model",
}
WOULD = {
    Grade.BROKEN: "would give no finite number",
    Grade.COLLAPSES: "would collapse",
    Grade.LOSES_MOST: "would lose most of it",
    Grade.LOSES_HALF: "would lose about half of it",
    Grade.KEEPS_MOST: "would keep most of it",
}
LEVELS: dict[Grade, Level] = {Grade.BROKEN: "critical", Grade.COLLAPSES: "critical", Grade.LOSES_MOST: "warning"}


def verdict(found: Collapse) -> Verdict:
    """What becomes of the whole model, and what skips and MLPs save it from. Parts that were run alone are no alarm."""
    if "whole" not in found.curves:
        name = list(found.curves)[-1]
        return Verdict("info", _variant(name, found.curves[name].mean, found))
    mean = found.curves["whole"].mean
    grade = graded(mean)
    level = LEVELS.get(grade, "calm")
    if grade in (Grade.BROKEN, Grade.COLLAPSES):
        first = _variant("whole", mean, found).removesuffix(".")
    else:
        left = f"{share_words(share_left(mean))} is left after {count(found.layers, 'block')}"
        first = f"The whole model {WORDS[grade]} ({left})"
    return Verdict(level, f"{first}{_saved(found, grade)}.")


def _saved(found: Collapse, grade: Grade) -> str:
    """What attention alone would have come to, and which part makes the difference."""
    known = {name: graded(curve.mean) for name, curve in found.curves.items()}
    alone, skips, mlps = (known.get(name) for name in ("san", "san+skip", "san+mlp"))
    if alone is None or grade is Grade.BROKEN:
        return ""
    if alone >= grade:
        return ": neither skips nor MLPs save it" if grade is Grade.COLLAPSES else "; attention alone would do no worse"
    said = f"; attention alone {WOULD[alone]}"
    if skips is None or mlps is None:
        return said
    if skips >= grade and mlps >= grade:
        return f"{said}, and skips or MLPs, either of them, save it from that"
    if skips >= grade or mlps >= grade:
        return f"{said}, and {'skips' if skips >= grade else 'MLPs'} save it from that"
    return f"{said}, and it takes skips and MLPs together to save it from that"


def sentences(found: Collapse) -> tuple[str, ...]:
    """One on every variant, and one on how fast attention alone collapses."""
    return (*variant_sentences(found), *_order(found))


def variant_sentences(found: Collapse) -> tuple[str, ...]:
    return tuple(_variant(name, curve.mean, found) for name, curve in found.curves.items())


def _variant(name: str, mean: Sequence[float], found: Collapse) -> str:
    subject, grade, last = SUBJECTS[name], graded(mean), len(mean) - 1
    known = [(depth, value) for depth, value in enumerate(mean) if math.isfinite(value)]
    if not known:
        return f"{subject} gives no finite number."
    if grade is Grade.COLLAPSES:
        rounding = next((depth for depth, value in known if value <= 8 * found.floor), None)
        if rounding is not None:
            return f"{subject} collapses: {_after(rounding)} only rounding is left (below {_ten(80 * found.floor)})."
        first = next(depth for depth, value in known if value < COLLAPSED)
        end = "" if first == known[-1][0] else f", {numeral(known[-1][1], 3)} {place_words(known[-1][0], last)}"
        return f"{subject} collapses: the residual is {numeral(mean[first], 3)} {_after(first)}{end}."
    start, end = (f"{numeral(value, 3)} {place_words(depth, last)}" for depth, value in (known[0], known[-1]))
    if grade is Grade.BROKEN:
        return f"{subject} gives no finite number {_after(known[-1][0] + 1)}: the residual is {end}."
    left = f"{share_words(share_left(mean))} is left"
    return f"{subject} {WORDS[grade]}: {start}, {end} ({left})."


def _after(depth: int) -> str:
    return f"after block {depth - 1}" if depth else "from the start"


def _ten(value: float) -> str:
    """The power of ten at or below a number."""
    return numeral(10.0 ** math.floor(math.log10(value)))


def _order(found: Collapse) -> list[str]:
    if not math.isfinite(found.order) or not found.pairs:
        return []
    blocks = f"fitted over {count(found.pairs, 'reading')} of single blocks; the theory says 3"
    return [
        f"One block of attention alone takes a small spread d of its tokens to about d^{found.order:.2f} ({blocks})."
    ]


def remarks(found: Collapse) -> tuple[str, ...]:
    """Notes that a reader of the curves must know; those on bounds stand with the provenance."""
    return tuple(note for note in found.notes if not note.startswith(("The bound", "Bound", "Corollary")))


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
                f"{SUBJECTS[name]}: at most {numeral(apart)} from the published {model} "
                f"({place_words(depth, len(ours) - 1)}: {numeral(a)} here, {numeral(b)} there)."
            )
    if model == "Albert":
        said.append(
            "The paper's Albert without MLPs keeps their activation (x + gelu(x) in every block), which holds its "
            "attention + skip up; here MLPs are out whole."
        )
    said.append(
        "The paper measured 32 sequences of 128 tokens of other text, with other seeds, in float32, to four decimals; "
        "curves of random weights depend on how weights are drawn."
    )
    return tuple(said)


def shape_words(found: Collapse) -> str:
    """`12 blocks of 12 heads, norm pre, random weights`."""
    blocks, heads = count(found.layers, "block"), count(found.heads, "head")
    return f"{blocks} of {heads}, norm {found.norm_placement}, {found.weights_words}"


def corpus_words(found: Collapse) -> str:
    """`pocket's text, 32 sequences of up to 128 tokens, 1,inf norm`."""
    corpus = found.provenance["corpus"]
    sequences = corpus["sequences"]
    over = count(sequences, "sequence") if isinstance(sequences, int) else f"{sequences} sequences"
    return f"{corpus['name']}, {over} of up to {count(found.tokens, 'token')}, {found.norm} norm"
