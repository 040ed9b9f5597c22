"""What a collapse says, in plain sentences."""

from __future__ import annotations

import math

from attnscope.commands.collapse.bounds_words import bounds_section
from attnscope.commands.collapse.grades import SUBJECTS, place_words, variant_sentences, verdict
from attnscope.commands.collapse.record import Collapse, Published
from attnscope.commands.collapse.record import published as published_curves
from attnscope.core.words import count, numeral
from attnscope.reports.document import Document, Figure, Section, Table, drawn_by, rows
from attnscope.reports.words import beginning_words

PAPERS_NORM = "1,inf"
FAR = 1e3  # over more than this, lines that stay up cannot be told apart on a logarithmic axis
BACKGROUND = (
    "Attention averages tokens, and tokens that are averaged often enough become the same one: then no later block can "
    "tell words apart. The relative residual measures how far a model is from that. It is the size of what tells "
    "tokens apart beside the size of the tokens, and 0 means that all tokens are one.",
    "All variants are cuts of the same weights, with norms kept: without skips the stream is not added to what "
    "attention writes, without MLPs these write nothing. Attention alone is known to run into 0 doubly exponentially "
    "with depth, and skips, which hand the input on, to keep it from doing so (arXiv:2103.03404).",
)


def document(found: Collapse, *, published: str | None = None) -> Document:
    """Return the document. `published` (BERT, Albert or XLNet) adds the paper's curves and lists the differences."""
    theirs = None if published is None else published_curves(published, found.weights)
    numbers = Table(
        ("block", *(curve.title for curve in found.curves.values())),
        _mean_rows(found),
        "Relative residual",
        f"Mean relative residual ({found.norm} norm) of the stream entering each block, and at the end.",
    )
    compared = (
        []
        if theirs is None
        else [
            Section(
                "Beside the published curves",
                sentences=published_words(found, theirs),
                notes=published_remarks(theirs),
                link="Published",
            )
        ]
    )
    return Document(
        verdict(found),
        f"What depth leaves of {found.model}",
        about=(f"{found.model}, {found.class_name}, {shape_words(found)}", corpus_words(found)),
        sections=(
            Section(
                "What it means",
                background=BACKGROUND,
                items=variant_sentences(found, short=True),
                notes=remarks(found),
                coloured=True,
            ),
            Section("Curves", figures=_figures(found, theirs)),
            *compared,
            Section(
                "Every point of the curves", sentences=_order(found), tables=(numbers,), link="Numbers", detail=True
            ),
            *bounds_section(found),
        ),
        provenance=[*rows(found.provenance), *(("note", note) for note in found.notes)],
    )


def _figures(found: Collapse, theirs: Published | None) -> tuple[Figure, ...]:
    """Draw the curves on a logarithmic axis, and also on a linear one if the first squeezes the upper lines
    together.
    """
    summary = " ".join(variant_sentences(found))
    over = count(max(int(n) for curve in found.curves.values() for n in curve.n), "sequence")
    dashed = "" if theirs is None else f" Dashed: {theirs.model} as published in arXiv:2103.03404."
    chart = "attnscope.commands.collapse.chart:curves_chart"
    logarithmic = Figure(
        "collapse",
        "What is left, block after block",
        drawn_by(chart, found, published=theirs),
        caption=f"Lines are means over {over}, bands reach from the tenth to the ninetieth percentile (p10 to p90) of "
        f"them.{dashed}",
        summary=summary,
    )
    if not far(found):
        return (logarithmic,)
    linear = Figure(
        "collapse-linear",
        "The same on a linear axis",
        drawn_by(chart, found, published=theirs, log=False),
        caption="Here lines that stay up can be told apart.",
        summary=summary,
    )
    return logarithmic, linear


def far(found: Collapse) -> bool:
    """Return whether some lines stay so high that they need a linear axis as well."""
    means = [max(mean, found.floor) for curve in found.curves.values() for mean in curve.mean if math.isfinite(mean)]
    return bool(means) and min(means) * FAR < max(means)


def _mean_rows(found: Collapse) -> tuple[tuple[str, ...], ...]:
    """Return a row for every block, so that a table of many blocks grows downwards."""
    curves = [curve.mean for curve in found.curves.values()]
    last = max(map(len, curves)) - 1
    return tuple(
        (
            "end" if depth == last else str(depth),
            *(numeral(mean[depth], 3) if depth < len(mean) and math.isfinite(mean[depth]) else "–" for mean in curves),
        )
        for depth in range(last + 1)
    )


def sentences(found: Collapse) -> tuple[str, ...]:
    """Return a sentence on every variant, and one on how fast attention alone collapses."""
    return (*variant_sentences(found), *_order(found))


def _order(found: Collapse) -> tuple[str, ...]:
    if not math.isfinite(found.order) or not found.pairs:
        return ()
    blocks = f"fitted over {count(found.pairs, 'reading')} of single blocks; the theory says 3"
    return (
        f"One block of attention alone takes a small spread d of its tokens to about d^{found.order:.2f} ({blocks}).",
    )


def remarks(found: Collapse) -> tuple[str, ...]:
    """Return the notes for readers of the curves. Notes on bounds are with the provenance."""
    return tuple(note for note in found.notes if not note.startswith("The bound"))


def published_words(found: Collapse, published: Published) -> tuple[str, ...]:
    """Say how far these curves are from the published ones, variant by variant."""
    said = []
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
                f"{SUBJECTS[name]}: at most {numeral(apart)} from the published {published.model} "
                f"({place_words(depth, len(ours) - 1)}: {numeral(a)} here, {numeral(b)} there)."
            )
    return tuple(said)


def published_remarks(published: Published) -> tuple[str, ...]:
    """Why curves need not agree with the published ones."""
    albert = (
        "The paper's Albert without MLPs keeps their activation (x + gelu(x) in every block), which holds its "
        "attention + skip up; here MLPs are out whole."
    )
    measured = (
        "The paper measured 32 sequences of 128 tokens of other text, with other seeds, in float32, to four decimals; "
        "curves of random weights depend on how weights are drawn."
    )
    return (albert, measured) if published.model == "Albert" else (measured,)


def shape_words(found: Collapse) -> str:
    """Return `12 blocks of 12 heads, norm pre, random weights`."""
    blocks, heads = count(found.layers, "block"), count(found.heads, "head")
    return f"{blocks} of {heads}, norm {found.norm_placement}, {found.weights_words}"


def corpus_words(found: Collapse) -> str:
    """Return `pocket's text, 32 sequences of up to 128 tokens, BOS first`, and the norm if it is not the paper's."""
    corpus = found.provenance["corpus"]
    sequences = corpus["sequences"]
    over = count(sequences, "sequence") if isinstance(sequences, int) else f"{sequences} sequences"
    norm = "" if found.norm == PAPERS_NORM else f", {found.norm} norm"
    read = (f"{corpus['name']}, {over} of up to {count(found.tokens, 'token')}", *beginning_words(found.provenance))
    return f"{', '.join(read)}{norm}"
