"""How wide a head must be, in words: sentences, and lines of (label, value, note)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.capacity.record import Capacity, Need
from attnscope.core.words import clean, numeral
from attnscope.reports.terminal import opening
from attnscope.reports.words import Level, Verdict

Line = tuple[str, str, str]
FROM_TABLE = (
    "The widths come from the table that ships with attnscope, and nothing was searched for: --budget SECONDS searches "
    "for what the table lacks, --no-cache for everything anew."
)


def sentences(found: Capacity) -> tuple[str, ...]:
    """What was enough and what cannot be enough, what the theorem asks for, and what is missing."""
    said = [
        answer_words(found),
        f"The theorem of arXiv:2106.03764 asks for {found.theorem_width:,}, by formula{_beside(found)}.",
    ]
    missing = [need.method for need in found.needs if not need.measured]
    if missing and len(missing) < len(found.needs):
        names = missing[0] if len(missing) == 1 else f"{', '.join(missing[:-1])} and {missing[-1]}"
        said.append(f"Not measured{'' if found.shipped else ' in the time given'}: {names}.")
    if found.shipped:
        said.append(FROM_TABLE)
    return tuple(said)


def answer_words(found: Capacity) -> str:
    """The answer in a sentence: what was enough, and what cannot be enough."""
    pattern = f"{found.k:,} of {found.n:,} tokens"
    floor = f"keys that serve every such pattern need at least {found.bounds['universal'].width:,}"
    best = found.narrowest
    if not any(need.measured for need in found.needs):
        return f"No width was measured for {pattern} in the time given (--budget gives more); {floor}."
    if best is None:
        return f"No construction attends to {pattern} with the accuracy that was asked for; {floor}."
    return f"Width {best.d:,} is enough to attend to one pattern of {pattern} ({best.method}); {floor}."


def title_words(found: Capacity) -> str:
    return f"{found.k} of {found.n:,} tokens, {found.dtype}"


def accuracy_words(found: Capacity) -> str:
    return f"ratio error {found.ratio_error:g}, leak {found.leak:g}, in the worst row"


def bound_lines(found: Capacity) -> list[Line]:
    return [
        (bound.name, f"{bound.width:,}", bound.statement)
        for bound in sorted(found.bounds.bounds, key=lambda bound: -bound.width)
    ] + [("logit floor", numeral(found.bounds.logit_floor), "the longest query times the longest key is at least this")]


def need_lines(found: Capacity) -> list[Line]:
    """Narrowest first, then those without a width; the theorem's own width beside them."""
    needs = sorted(found.needs, key=lambda need: math.inf if need.d is None else need.d)
    lines = [(need.method, width_words(need), need_words(need)) for need in needs]
    return [*lines, ("the theorem", f"{found.theorem_width:,}", "what arXiv:2106.03764 guarantees, by formula")]


def need_words(need: Need) -> str:
    if not need.measured:
        return need.note
    widths = ", ".join("none" if width is None else str(width) for width in need.widths)
    words = f"{widths} at {'seed' if len(need.seeds) == 1 else 'seeds'} {', '.join(map(str, need.seeds))}"
    words += f"; largest logit {numeral(need.max_logit)}" if need.max_logit is not None else ""
    return f"{words}; {need.note}" if need.note else words


def seed_words(found: Capacity) -> str:
    """Which patterns a point of the curves stands for: all seeds, or those there was time for."""
    drawn = [need.seeds for need in (*found.against_n, *found.against_k) if need.d is not None]
    named = ", ".join(map(str, found.seeds))
    if len(found.seeds) == 1:
        return f"seed {named}"
    return f"seeds {named}" if all(seeds == found.seeds for seeds in drawn) else f"some of the seeds {named}"


@dataclass(frozen=True)
class CurveTable:
    """A curve as numbers: the places along it, and a line for each construction and each bound."""

    title: str
    caption: str
    places: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def curve_tables(found: Capacity) -> tuple[CurveTable, ...]:
    tables = []
    if found.against_n:
        places = tuple(dict.fromkeys(need.n for need in found.against_n))
        lines = _curve_lines(found, found.against_n, [(n, found.k) for n in places])
        caption = f"Width against tokens n, k = {found.k}"
        tables.append(CurveTable("Against tokens", caption, tuple(f"{n:,}" for n in places), lines))
    if found.against_k:
        at = found.against_k[0].n
        places = tuple(dict.fromkeys(need.k for need in found.against_k))
        lines = _curve_lines(found, found.against_k, [(at, k) for k in places])
        caption = f"Width against keys of a row k, n = {at:,}"
        tables.append(CurveTable("Against keys of a row", caption, tuple(f"{k:,}" for k in places), lines))
    return tuple(tables)


def _curve_lines(
    found: Capacity, needs: Sequence[Need], places: Sequence[tuple[int, int]]
) -> tuple[tuple[str, ...], ...]:
    known = {(need.method, need.n, need.k): need for need in needs}
    lines = [
        (method, *(width_words(known.get((method, n, k))) for n, k in places))
        for method in dict.fromkeys(need.method for need in needs)
    ]
    floors = [floor for n, k in places if (floor := found.floor(n, k))]
    if len(floors) == len(places):
        lines.append(("bound: keys for all patterns", *(f"{floor.universal:,}" for floor in floors)))
        lines.append(("bound: most patterns", *(f"{floor.typical:,}" for floor in floors)))
    return tuple(lines)


def width_words(need: Need | None) -> str:
    if need is None or not need.measured:
        return "–"
    return "none" if need.d is None else f"{need.d:,}"


def _beside(found: Capacity) -> str:
    best = found.narrowest
    return ": far above what is needed" if best is not None and 10 * (best.d or 0) < found.theorem_width else ""


def verdict(found: Capacity) -> Verdict:
    """The answer; a warning where everything was tried and nothing reached the accuracy."""
    measured = any(need.measured for need in found.needs)
    level: Level = "calm" if found.narrowest is not None else "warning" if measured else "note"
    return Verdict(level, answer_words(found))


# A capacity in a terminal: the answer in sentences; with `verbose` also what is proved and what was measured.


def show(found: Capacity, *, verbose: bool = False) -> RenderableType:
    """What a console prints."""
    parts = opening(verdict(found), f"{title_words(found)}; {accuracy_words(found)}")
    parts += [Text(""), *(Text(clean(sentence)) for sentence in sentences(found)[1:])]
    tables = (("What is proved", bound_lines(found)), ("What was measured", need_lines(found))) if verbose else ()
    for heading, lines in tables:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", style="bold", no_wrap=True)
        table.add_column(style="dim")
        for line in lines:
            table.add_row(*(Text(clean(word)) for word in line))
        parts += [Text.assemble("\n", (heading, "bold")), table]
    return Group(*parts)


# A capacity in a notebook: what each construction needs.


def html(found: Capacity) -> str:
    rows = "".join(
        f"<tr><th>{escape(need.method)}</th><td>{escape(width_words(need))}</td></tr>" for need in found.needs
    )
    floor = found.bounds["universal"].width
    title = f"n = {found.n}, k = {found.k}, {found.dtype}: width needed (keys for all patterns: at least {floor})"
    return f"<p>{escape(title)}</p><table>{rows}</table>"
