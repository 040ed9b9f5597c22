"""The sentences and the document of a collapse."""

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
FAR = 1e3  # if values span more than this factor, high lines are squeezed together on a logarithmic axis
BACKGROUND = (
    "Attention averages tokens, and tokens that are averaged often enough become equal: then no later block can tell "
    "words apart. The relative residual measures how far a model is from that. It is the size of the differences "
    "between tokens, divided by the size of the tokens; 0 means that all tokens are equal.",
    "All variants use the same weights and keep the norms: without skips the stream is not added to what attention "
    "writes, and without MLPs these write nothing. With attention alone the residual is known to fall to 0 doubly "
    "exponentially with depth, and skips, which pass the input on, prevent this (arXiv:2103.03404).",
)


def document(record: Collapse, *, published: str | None = None) -> Document:
    """Return the document. `published` ("BERT", "Albert" or "XLNet") adds the paper's curves and the differences."""
    theirs = None if published is None else published_curves(published, record.weights)
    numbers = Table(
        ("block", *(curve.title for curve in record.curves.values())),
        _mean_rows(record),
        "Relative residual",
        f"Mean relative residual ({record.norm} norm) of the stream entering each block, and at the end.",
    )
    compared = (
        []
        if theirs is None
        else [
            Section(
                "Beside the published curves",
                sentences=published_words(record, theirs),
                notes=published_remarks(theirs),
                link="Published",
            )
        ]
    )
    return Document(
        verdict(record),
        f"What depth leaves of {record.model}",
        about=(f"{record.model}, {record.class_name}, {shape_words(record)}", corpus_words(record)),
        sections=(
            Section(
                "What it means",
                background=BACKGROUND,
                items=variant_sentences(record, short=True),
                notes=remarks(record),
                coloured=True,
            ),
            Section("Curves", figures=_figures(record, theirs)),
            *compared,
            Section(
                "Every point of the curves", sentences=_order(record), tables=(numbers,), link="Numbers", detail=True
            ),
            *bounds_section(record),
        ),
        provenance=[*rows(record.provenance), *(("note", note) for note in record.notes)],
    )


def _figures(record: Collapse, theirs: Published | None) -> tuple[Figure, ...]:
    """Return the curves on a logarithmic axis, and on a linear one too if the first squeezes the upper lines."""
    summary = " ".join(variant_sentences(record))
    over = count(max(int(n) for curve in record.curves.values() for n in curve.n), "sequence")
    dashed = "" if theirs is None else f" Dashed: {theirs.model} as published in arXiv:2103.03404."
    chart = "attnscope.commands.collapse.chart:curves_chart"
    logarithmic = Figure(
        "collapse",
        "Relative residual by block",
        drawn_by(chart, record, published=theirs),
        caption=f"Lines are means over {over}; bands are from the 10th to the 90th percentile.{dashed}",
        summary=summary,
    )
    if not far(record):
        return (logarithmic,)
    linear = Figure(
        "collapse-linear",
        "The same on a linear axis",
        drawn_by(chart, record, published=theirs, log=False),
        caption="On this axis the upper lines can be distinguished.",
        summary=summary,
    )
    return logarithmic, linear


def far(record: Collapse) -> bool:
    """Return whether values span so many decades that a linear axis is needed as well."""
    means = [max(mean, record.floor) for curve in record.curves.values() for mean in curve.mean if math.isfinite(mean)]
    return bool(means) and min(means) * FAR < max(means)


def _mean_rows(record: Collapse) -> tuple[tuple[str, ...], ...]:
    """Return one row of the table for each block, and one for the end."""
    curves = [curve.mean for curve in record.curves.values()]
    last = max(map(len, curves)) - 1
    return tuple(
        (
            "end" if depth == last else str(depth),
            *(numeral(mean[depth], 3) if depth < len(mean) and math.isfinite(mean[depth]) else "–" for mean in curves),
        )
        for depth in range(last + 1)
    )


def sentences(record: Collapse) -> tuple[str, ...]:
    """Return a sentence on every variant, and one on how fast attention alone collapses."""
    return (*variant_sentences(record), *_order(record))


def _order(record: Collapse) -> tuple[str, ...]:
    if not math.isfinite(record.order) or not record.pairs:
        return ()
    blocks = f"fitted over {count(record.pairs, 'point')} of single blocks; the theory says 3"
    return (
        f"One block of attention alone maps a small diameter d of its tokens to about d^{record.order:.2f} ({blocks}).",
    )


def remarks(record: Collapse) -> tuple[str, ...]:
    """Return the notes on curves. Notes on bounds are in the provenance."""
    return tuple(note for note in record.notes if not note.startswith("The bound"))


def published_words(record: Collapse, published: Published) -> tuple[str, ...]:
    """Return the largest difference from the published curve of each variant, as sentences."""
    lines = []
    for name, theirs in published.curves.items():
        if name not in record.curves:
            continue
        ours = record.curves[name].mean
        pairs = [
            (abs(a - b), depth, a, b)
            for depth, (a, b) in enumerate(zip(ours, theirs, strict=False))
            if math.isfinite(a)
        ]
        if pairs:
            apart, depth, a, b = max(pairs)
            lines.append(
                f"{SUBJECTS[name]}: at most {numeral(apart)} from the published {published.model} "
                f"({place_words(depth, len(ours) - 1)}: {numeral(a)} here, {numeral(b)} there)."
            )
    return tuple(lines)


def published_remarks(published: Published) -> tuple[str, ...]:
    """Return the reasons why curves need not agree with the published ones."""
    albert = (
        "The paper's Albert without MLPs keeps their activation (x + gelu(x) in every block), which keeps the residual "
        "of attention + skip high; here MLPs are removed entirely."
    )
    measured = (
        "The paper measured 32 sequences of 128 tokens of other text, with other seeds, in float32, to four decimals; "
        "curves of random weights depend on the initialisation."
    )
    return (albert, measured) if published.model == "Albert" else (measured,)


def shape_words(record: Collapse) -> str:
    """Return `12 blocks of 12 heads, norm pre, random weights`."""
    blocks, heads = count(record.layers, "block"), count(record.heads, "head")
    return f"{blocks} of {heads}, norm {record.norm_placement}, {record.weights_words}"


def corpus_words(record: Collapse) -> str:
    """Return `pocket's text, 32 sequences of up to 128 tokens, BOS first`, and the norm if it is not the paper's."""
    corpus = record.provenance["corpus"]
    sequences = corpus["sequences"]
    over = count(sequences, "sequence") if isinstance(sequences, int) else f"{sequences} sequences"
    norm = "" if record.norm == PAPERS_NORM else f", {record.norm} norm"
    read = (f"{corpus['name']}, {over} of up to {count(record.tokens, 'token')}", *beginning_words(record.provenance))
    return f"{', '.join(read)}{norm}"
