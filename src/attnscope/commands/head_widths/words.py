"""The widths of a model's heads, in words."""

from __future__ import annotations

import statistics

from attnscope.commands.head_widths.record import IDLE, HeadWidths
from attnscope.core.words import count, numeral
from attnscope.reports.document import Document, Figure, Section, Table, drawn_by, rows
from attnscope.reports.words import Verdict

BACKGROUND = (
    "Every text gives every head a pattern: the strongest keys of each query. For each pattern the narrowest head that "
    "realises it was searched for, and certified. A head that is much wider than that has room to spare on these "
    "texts; one that is not can do no more than it does."
)
BRIEF = 8  # heads in a terminal without --verbose


def document(found: HeadWidths) -> Document:
    figure = Figure(
        "head_widths",
        "Width found for what each head attends to",
        drawn_by("attnscope.commands.head_widths.chart:head_width_map", found),
        caption=f"{about(found)[0]}. The widest of the texts counts; ✕ where none was found in the time given.",
    )
    heading = ("head", "width found", "width it has", "proved at least", f"top {found.k} keys hold")
    heads = Table(heading, _head_rows(found), brief=BRIEF)
    return Document(
        verdict(found),
        f"How wide must the heads of {found.model} be?",
        about=about(found),
        sections=(
            Section("What it means", background=(BACKGROUND,), sentences=_sentences(found)),
            Section("Map", figures=(figure,)),
            Section("Heads", tables=(heads,)),
        ),
        provenance=rows(
            {
                "model": found.model,
                "texts": found.texts,
                "tokens": found.tokens,
                "seconds": found.seconds,
                "interrupted": found.interrupted,
                "attnscope": found.attnscope,
            }
        ),
    )


def verdict(found: HeadWidths) -> Verdict:
    measured = found.measured
    if not measured:
        return Verdict("warning", f"No head of {found.model} has a width: give it time with --budget.")
    needs = [head.needs or 0 for head in measured]
    sizes = sorted({head.head_dim for head in measured})
    sentence = (
        f"What {count(len(measured), 'head')} of {found.model} attend to fits heads of width "
        f"{min(needs)} to {max(needs)} (median {numeral(float(statistics.median(needs)))}), text by text; "
        f"they have {sizes[0] if len(sizes) == 1 else f'{sizes[0]} to {sizes[-1]}'}."
    )
    return Verdict("warning" if found.cramped else "calm", sentence)


def _sentences(found: HeadWidths) -> tuple[str, ...]:
    """Say which heads are idle or cramped, what the ignored keys hold, and what is missing."""
    sentences = []
    if found.measured:
        idle, cramped = len(found.idle), len(found.cramped)
        share = {2: "half", 4: "fourth", 8: "eighth", 16: "sixteenth"}.get(IDLE, f"{IDLE}th")
        held = statistics.median(head.held for head in found.measured)
        sentences = [
            f"{count(idle, 'head')} {'is' if idle == 1 else 'are'} idle (a head of an {share} of the width was made "
            f"for every text), {cramped} cramped (no narrower head than itself was found).",
            f"The {found.k} strongest keys of a query hold {held:.0%} of a head's attention in the median; what the "
            "others hold is not in these patterns. Widths are for each text on its own: one pair of projections for "
            "all texts may need more.",
        ]
    if missing := len(found.heads) - len(found.measured):
        sentences.append(f"{count(missing, 'head')} could not be measured on every text in the time given.")
    return tuple(sentences)


def about(found: HeadWidths) -> tuple[str, str]:
    tokens = f"{min(found.tokens)} to {max(found.tokens)}" if len(set(found.tokens)) > 1 else f"{found.tokens[0]}"
    return (
        f"{found.model}: {count(len(found.heads), 'head')}, {count(found.texts, 'text')} of {tokens} tokens, "
        f"{found.k} keys a row",
        f"{found.dtype}, worst row: ratio error {numeral(found.ratio_error)}, leak {numeral(found.leak)}",
    )


def _head_rows(found: HeadWidths) -> tuple[tuple[str, ...], ...]:
    """Widest need first; heads without a width last."""
    ordered = sorted(found.heads, key=lambda head: (-(head.needs or 0), head.stack, head.layer, head.head))
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
