"""The widths of a model's heads, in words: sentences, and lines of (head, width, note)."""

from __future__ import annotations

import statistics

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.head_widths.record import IDLE, HeadWidth, HeadWidths
from attnscope.core.words import clean, count, numeral
from attnscope.reports.terminal import opening
from attnscope.reports.words import Verdict

Line = tuple[str, str, str]


def verdict(found: HeadWidths) -> Verdict:
    measured = found.measured
    if not measured:
        return Verdict("warning", f"No head of {found.model} has a width: give it time with --budget.")
    needs = [head.needs or 0 for head in measured]
    sentence = (
        f"What {count(len(measured), 'head')} of {found.model} attend to fits heads of width "
        f"{min(needs)} to {max(needs)} (median {numeral(float(statistics.median(needs)))}), text by text; "
        f"they have {dimensions(measured)}."
    )
    return Verdict("warning" if found.cramped else "calm", sentence)


def sentences(found: HeadWidths) -> tuple[str, ...]:
    """The verdict, who is idle and who cramped, what the keys left out hold, and what is missing."""
    said = [verdict(found).sentence]
    if found.measured:
        idle, cramped = len(found.idle), len(found.cramped)
        said.append(
            f"{count(idle, 'head')} {'is' if idle == 1 else 'are'} idle (a head of an {ordinal(IDLE)} of the width was "
            f"made for every text), {cramped} cramped (no narrower head than itself was found)."
        )
        held = statistics.median(head.held for head in found.measured)
        said.append(
            f"The {found.k} strongest keys of a query hold {held:.0%} of a head's attention in the median; what the "
            "others hold is not in these patterns. Widths are for each text on its own: one pair of projections for "
            "all texts may need more."
        )
    missing = len(found.heads) - len(found.measured)
    if missing:
        said.append(f"{count(missing, 'head')} could not be measured on every text in the time given.")
    return tuple(said)


def ordinal(number: int) -> str:
    return {2: "half", 4: "fourth", 8: "eighth", 16: "sixteenth"}.get(number, f"{number}th")


def dimensions(heads: tuple[HeadWidth, ...]) -> str:
    sizes = sorted({head.head_dim for head in heads})
    return f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"


def title_words(found: HeadWidths) -> str:
    tokens = f"{min(found.tokens)} to {max(found.tokens)}" if len(set(found.tokens)) > 1 else f"{found.tokens[0]}"
    return (
        f"{found.model}: {count(len(found.heads), 'head')}, {count(found.texts, 'text')} of {tokens} tokens, "
        f"{found.k} keys a row"
    )


def accuracy_words(found: HeadWidths) -> str:
    return f"{found.dtype}, worst row: ratio error {numeral(found.ratio_error)}, leak {numeral(found.leak)}"


def head_lines(found: HeadWidths) -> list[Line]:
    """Widest need first; heads without a width last."""
    ordered = sorted(found.heads, key=lambda one: (-(one.needs or 0), one.stack, one.layer, one.head))
    return [
        (
            f"{one.stack} block {one.layer}, head {one.head}",
            "not measured" if one.needs is None else f"{one.needs}",
            f"has {one.head_dim}; at least {one.proved} is proved; top {found.k} keys hold {one.held:.0%}",
        )
        for one in ordered
    ]


# The widths of a model's heads in a terminal: sentences, and the heads that need most; all with `verbose`.

SHOWN = 8


def show(found: HeadWidths, *, verbose: bool = False) -> RenderableType:
    """What a console prints."""
    parts = opening(verdict(found), f"{title_words(found)}; {accuracy_words(found)}")
    parts += [Text(""), *(Text(clean(sentence)) for sentence in sentences(found)[1:])]
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(style="dim")
    lines = head_lines(found)
    for line in lines if verbose else lines[:SHOWN]:
        table.add_row(*(Text(clean(word)) for word in line))
    return Group(*parts, Text(""), table)
