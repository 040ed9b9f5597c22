"""How wide a head must be, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnscope.commands.capacity.record import Capacity, Need
from attnscope.core.words import numeral
from attnscope.reports.document import Document, Figure, Section, Table, drawn_by, rows
from attnscope.reports.words import Verdict, listed

FROM_TABLE = (
    "The widths come from the table that ships with attnscope, and nothing was searched for: --budget SECONDS searches "
    "for what the table lacks, --no-cache for everything anew."
)
BACKGROUND = (
    "A head of width d attends with queries and keys of d coordinates. Any pattern with at most k keys in a row and in "
    "a column has a head whose width grows with k, and with the number of tokens only as its logarithm "
    "(arXiv:2106.03764). Widths are measured, never extrapolated. Some constructions have keys that serve every "
    "pattern, others fit queries and keys to one pattern; joint is of the second kind, and narrower for it."
)


def document(found: Capacity) -> Document:
    floor = numeral(found.bounds.logit_floor)
    return Document(
        verdict(found),
        f"How wide must a head be to attend to any {found.k:,} of {found.n:,} tokens?",
        about=(f"{found.dtype} · ratio error {found.ratio_error:g}, leak {found.leak:g}, in the worst row",),
        sections=(
            Section("What it means", background=(BACKGROUND,), sentences=_sentences(found)),
            *_curves(found),
            Section(
                "What each construction needs",
                background=(f"The smallest width found at n = {found.n:,}, k = {found.k}: the median over seeds.",),
                tables=(Table(("construction", "width", "measured"), need_rows(found), align="lrl", brief=0),),
                link="Constructions",
            ),
            Section(
                "What no head can go below",
                background=(
                    "These bounds are for keys that serve every pattern; one pattern alone may need less. Whatever the "
                    f"width, the longest query times the longest key is at least {floor} (as logits see them).",
                ),
                tables=(Table(("bound", "width", "proves", "why", "source"), _bounds(found), align="lrlll", brief=0),),
                link="Bounds",
            ),
            *_numbers(found),
        ),
        provenance=rows(
            {
                "patterns": found.pattern.replace("_", " "),
                "seeds": found.seeds,
                "seconds": found.seconds,
                "interrupted": found.interrupted,
                "attnscope": found.attnscope,
            }
        ),
    )


def verdict(found: Capacity) -> Verdict:
    """Say which width is enough and which is proved too small. Warn if no construction reached the accuracy."""
    pattern = f"{found.k:,} of {found.n:,} tokens"
    floor = f"keys that serve every such pattern need at least {found.bounds['universal'].width:,}"
    best = found.narrowest
    if best is not None:
        enough = f"Width {best.d:,} is enough to attend to one pattern of {pattern} ({best.method})"
        return Verdict("calm", f"{enough}; {floor}.")
    if any(need.measured for need in found.needs):
        missed = f"No construction attends to {pattern} with the accuracy that was asked for"
        return Verdict("warning", f"{missed}; {floor}.")
    return Verdict("note", f"No width was measured for {pattern} in the time given (--budget gives more); {floor}.")


def _sentences(found: Capacity) -> tuple[str, ...]:
    """Say which width the theorem needs, and which results are missing."""
    best = found.narrowest
    far = ": far above what is needed" if best is not None and 10 * (best.d or 0) < found.theorem_width else ""
    sentences = [f"The theorem of arXiv:2106.03764 asks for {found.theorem_width:,}, by formula{far}."]
    missing = [need.method for need in found.needs if not need.measured]
    if missing and len(missing) < len(found.needs):
        sentences.append(f"Not measured{'' if found.shipped else ' in the time given'}: {listed(missing)}.")
    return (*sentences, FROM_TABLE) if found.shipped else tuple(sentences)


def need_rows(found: Capacity) -> tuple[tuple[str, ...], ...]:
    """Return the narrowest constructions first, then those without a width, and the theorem's own width last."""
    needs = sorted(found.needs, key=lambda need: math.inf if need.d is None else need.d)
    measured = ((need.method, _width(need), _measured(need)) for need in needs)
    return (*measured, ("the theorem", f"{found.theorem_width:,}", "what arXiv:2106.03764 guarantees, by formula"))


def _measured(need: Need) -> str:
    if not need.measured:
        return need.note
    widths = ", ".join("none" if width is None else str(width) for width in need.widths)
    words = f"{widths} at {'seed' if len(need.seeds) == 1 else 'seeds'} {', '.join(map(str, need.seeds))}"
    words += f"; largest logit {numeral(need.max_logit)}" if need.max_logit is not None else ""
    return f"{words}; {need.note}" if need.note else words


def _bounds(found: Capacity) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (bound.name, f"{bound.width:,}", "yes" if bound.proves else "no", bound.statement, bound.citation)
        for bound in sorted(found.bounds.bounds, key=lambda bound: -bound.width)
    )


def _curves(found: Capacity) -> tuple[Section, ...]:
    """Return the chart, or nothing if no width was measured along the curves."""
    if all(need.d is None for need in (*found.against_n, *found.against_k)):
        return ()
    figure = Figure(
        "capacity",
        "Width against tokens and against keys of a row",
        drawn_by("attnscope.commands.capacity.chart:capacity_curves", found),
        caption=f"Smallest widths found on unions of k random permutations, median over {seed_words(found)}; bounds "
        "dashed. Both axes are logarithmic.",
    )
    return (Section("Curves", figures=(figure,)),)


def seed_words(found: Capacity) -> str:
    """Name the seeds behind the curves: all of them, or some if time ran out."""
    drawn = [need.seeds for need in (*found.against_n, *found.against_k) if need.d is not None]
    named = ", ".join(map(str, found.seeds))
    if len(found.seeds) == 1:
        return f"seed {named}"
    return f"seeds {named}" if all(seeds == found.seeds for seeds in drawn) else f"some of the seeds {named}"


def _numbers(found: Capacity) -> tuple[Section, ...]:
    tables = curve_tables(found)
    background = ('A dash means that nothing was measured, "none" that no width reached the accuracy.',)
    return (Section("Curves as numbers", background=background, tables=tables, link="Numbers"),) if tables else ()


def curve_tables(found: Capacity) -> tuple[Table, ...]:
    """Return each curve as numbers: one column for each place, one row for each construction and bound."""
    tables = []
    if found.against_n:
        places = tuple(dict.fromkeys(need.n for need in found.against_n))
        lines = _curve_rows(found, found.against_n, [(n, found.k) for n in places])
        tables.append(_curve_table(f"Width against tokens n, k = {found.k}", places, lines))
    if found.against_k:
        at = found.against_k[0].n
        places = tuple(dict.fromkeys(need.k for need in found.against_k))
        lines = _curve_rows(found, found.against_k, [(at, k) for k in places])
        tables.append(_curve_table(f"Width against keys of a row k, n = {at:,}", places, lines))
    return tuple(tables)


def _curve_table(caption: str, places: tuple[int, ...], lines: tuple[tuple[str, ...], ...]) -> Table:
    return Table(("construction", *(f"{place:,}" for place in places)), lines, caption, brief=0)


def _curve_rows(
    found: Capacity, needs: Sequence[Need], places: Sequence[tuple[int, int]]
) -> tuple[tuple[str, ...], ...]:
    known = {(need.method, need.n, need.k): need for need in needs}
    lines = [
        (method, *(_width(known.get((method, n, k))) for n, k in places))
        for method in dict.fromkeys(need.method for need in needs)
    ]
    floors = [floor for n, k in places if (floor := found.floor(n, k))]
    if len(floors) == len(places):
        lines.append(("bound: keys for all patterns", *(f"{floor.universal:,}" for floor in floors)))
        lines.append(("bound: most patterns", *(f"{floor.typical:,}" for floor in floors)))
    return tuple(lines)


def _width(need: Need | None) -> str:
    if need is None or not need.measured:
        return "–"
    return "none" if need.d is None else f"{need.d:,}"
