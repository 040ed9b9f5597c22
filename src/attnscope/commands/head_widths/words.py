"""The sentences, table and document of the widths of a model's heads."""

from __future__ import annotations

import statistics

from attnscope.commands.head_widths.record import IDLE, HeadWidths
from attnscope.core.words import count, numeral
from attnscope.reports.document import Document, Figure, Section, Table, drawn_by, rows
from attnscope.reports.words import Verdict

BACKGROUND = (
    "Every text gives every head a pattern: the strongest keys of each query. For each pattern the narrowest head that "
    "realises it was searched and certified. A head that is much wider than that has room to spare on these texts; a "
    "head that is no wider uses all its coordinates."
)
BRIEF = 8  # heads in a terminal without --verbose


def document(record: HeadWidths) -> Document:
    figure = Figure(
        "head_widths",
        "Width found for what each head attends to",
        drawn_by("attnscope.commands.head_widths.chart:head_width_map", record),
        caption="The largest width over texts; ✕ if none was found in the time given.",
    )
    heading = ("head", "width found", "width it has", "proved at least", f"top {record.k} keys hold")
    heads = Table(heading, _head_rows(record), brief=BRIEF)
    return Document(
        verdict(record),
        f"How wide must the heads of {record.model} be?",
        about=about(record),
        sections=(
            Section("What it means", background=(BACKGROUND,), sentences=_sentences(record)),
            Section("Map", figures=(figure,)),
            Section("Heads", tables=(heads,)),
        ),
        provenance=rows(
            {
                "model": record.model,
                "texts": record.texts,
                "tokens": record.tokens,
                "seconds": record.seconds,
                "interrupted": record.interrupted,
                "attnscope": record.attnscope,
            }
        ),
    )


def verdict(record: HeadWidths) -> Verdict:
    measured = record.measured
    if not measured:
        return Verdict("warning", f"No width was found for a head of {record.model}: allow more time with --budget.")
    needs = [head.needs or 0 for head in measured]
    sizes = sorted({head.head_dim for head in measured})
    sentence = (
        f"What {count(len(measured), 'head')} of {record.model} attend to fits heads of width "
        f"{min(needs)} to {max(needs)} (median {numeral(float(statistics.median(needs)))}), text by text; "
        f"they have {sizes[0] if len(sizes) == 1 else f'{sizes[0]} to {sizes[-1]}'}."
    )
    return Verdict("warning" if record.cramped else "calm", sentence)


def _sentences(record: HeadWidths) -> tuple[str, ...]:
    """Return sentences on idle and cramped heads, on the attention of other keys, and on missing widths."""
    sentences = []
    if record.measured:
        idle, cramped = len(record.idle), len(record.cramped)
        share = {2: "half", 4: "fourth", 8: "eighth", 16: "sixteenth"}.get(IDLE, f"{IDLE}th")
        held = statistics.median(head.held for head in record.measured)
        sentences = [
            f"{count(idle, 'head')} {'is' if idle == 1 else 'are'} idle (a head of an {share} of the width is enough "
            f"for every text), {cramped} cramped (no narrower head was found).",
            f"The {record.k} strongest keys of a query get {held:.0%} of a head's attention in the median; these "
            "patterns ignore the other keys. Widths are for each text on its own: one pair of projections for all "
            "texts may need more.",
        ]
    if missing := len(record.heads) - len(record.measured):
        sentences.append(f"{count(missing, 'head')} could not be measured on every text in the time given.")
    return tuple(sentences)


def about(record: HeadWidths) -> tuple[str, str]:
    tokens = f"{min(record.tokens)} to {max(record.tokens)}" if len(set(record.tokens)) > 1 else f"{record.tokens[0]}"
    return (
        f"{record.model}: {count(len(record.heads), 'head')}, {count(record.texts, 'text')} of {tokens} tokens, "
        f"{record.k} keys a row",
        f"{record.dtype}, worst row: ratio error {numeral(record.ratio_error)}, leak {numeral(record.leak)}",
    )


def _head_rows(record: HeadWidths) -> tuple[tuple[str, ...], ...]:
    """Return one row for each head, the largest width first; heads without a width come last."""
    ordered = sorted(record.heads, key=lambda head: (-(head.needs or 0), head.stack, head.layer, head.head))
    return tuple(
        (
            f"{head.stack} block {head.layer}, head {head.head}",
            "not measured" if head.needs is None else f"{head.needs}",
            f"{head.head_dim}",
            f"{head.proved}",
            f"{head.held:.0%}",
        )
        for head in ordered
    )
