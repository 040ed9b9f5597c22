"""The sentences, tables and document of a capacity."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnscope.commands.capacity.record import Capacity, Need
from attnscope.core.words import numeral
from attnscope.reports.document import Document, Figure, Section, Table, drawn_by, rows
from attnscope.reports.words import Verdict, listed

FROM_TABLE = (
    "The widths come from the table that ships with attnscope: --budget SECONDS also searches for widths that the "
    "table lacks, and --no-cache measures everything again."
)
BACKGROUND = (
    "A head of width d has queries and keys of d coordinates. Any pattern with at most k keys in a row and in a column "
    "has a head whose width grows with k, and only with the logarithm of the number of tokens (arXiv:2106.03764). "
    "Widths are measured, never extrapolated. Some constructions have keys that serve every pattern. Others, such as "
    "joint, fit queries and keys to one pattern and are narrower."
)


def document(record: Capacity) -> Document:
    floor = numeral(record.bounds.logit_floor)
    return Document(
        verdict(record),
        f"How wide must a head be to attend to any {record.k:,} of {record.n:,} tokens?",
        about=(f"{record.dtype} · ratio error {record.ratio_error:g}, leak {record.leak:g}, in the worst row",),
        sections=(
            Section("What it means", background=(BACKGROUND,), sentences=_sentences(record)),
            *_curves(record),
            Section(
                "Width of each construction",
                background=(f"The smallest width found at n = {record.n:,}, k = {record.k}: the median over seeds.",),
                tables=(Table(("construction", "width", "measured"), need_rows(record), align="lrl", brief=0),),
                link="Constructions",
            ),
            Section(
                "Lower bounds of the width",
                background=(
                    "These bounds are for keys that serve every pattern; one pattern alone may need less. The longest "
                    f"query times the longest key is at least {floor} at any width (norms, in units of logits).",
                ),
                tables=(Table(("bound", "width", "proves", "why", "source"), _bounds(record), align="lrlll", brief=0),),
                link="Bounds",
            ),
            *_numbers(record),
        ),
        provenance=rows(
            {
                "patterns": record.pattern.replace("_", " "),
                "seeds": record.seeds,
                "seconds": record.seconds,
                "interrupted": record.interrupted,
                "attnscope": record.attnscope,
            }
        ),
    )


def verdict(record: Capacity) -> Verdict:
    """Say which width is enough and which is proved too small. Warn if no construction reached the accuracy."""
    pattern = f"{record.k:,} of {record.n:,} tokens"
    floor = f"keys that serve every such pattern need at least {record.bounds['universal'].width:,}"
    best = record.narrowest
    if best is not None:
        enough = f"Width {best.d:,} is enough to attend to one pattern of {pattern} ({best.method})"
        return Verdict("calm", f"{enough}; {floor}.")
    if any(need.measured for need in record.needs):
        missed = f"No construction attends to {pattern} with the accuracy that was asked for"
        return Verdict("warning", f"{missed}; {floor}.")
    return Verdict("note", f"No width was measured for {pattern} in the time given (--budget allows more); {floor}.")


def _sentences(record: Capacity) -> tuple[str, ...]:
    """Return sentences on the theorem's width and on missing measurements."""
    best = record.narrowest
    far = ": far above what is needed" if best is not None and 10 * (best.d or 0) < record.theorem_width else ""
    sentences = [f"The theorem of arXiv:2106.03764 asks for {record.theorem_width:,}, by formula{far}."]
    missing = [need.method for need in record.needs if not need.measured]
    if missing and len(missing) < len(record.needs):
        sentences.append(f"Not measured{'' if record.shipped else ' in the time given'}: {listed(missing)}.")
    return (*sentences, FROM_TABLE) if record.shipped else tuple(sentences)


def need_rows(record: Capacity) -> tuple[tuple[str, ...], ...]:
    """Return one row for each construction, narrowest first, and the width of the theorem last."""
    needs = sorted(record.needs, key=lambda need: math.inf if need.d is None else need.d)
    measured = ((need.method, _width(need), _measured(need)) for need in needs)
    return (*measured, ("the theorem", f"{record.theorem_width:,}", "what arXiv:2106.03764 guarantees, by formula"))


def _measured(need: Need) -> str:
    if not need.measured:
        return need.note
    widths = ", ".join("none" if width is None else str(width) for width in need.widths)
    words = f"{widths} at {'seed' if len(need.seeds) == 1 else 'seeds'} {', '.join(map(str, need.seeds))}"
    words += f"; largest logit {numeral(need.max_logit)}" if need.max_logit is not None else ""
    return f"{words}; {need.note}" if need.note else words


def _bounds(record: Capacity) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (bound.name, f"{bound.width:,}", "yes" if bound.proves else "no", bound.statement, bound.citation)
        for bound in sorted(record.bounds.bounds, key=lambda bound: -bound.width)
    )


def _curves(record: Capacity) -> tuple[Section, ...]:
    """Return the chart, or nothing if no width was measured along the curves."""
    if all(need.d is None for need in (*record.against_n, *record.against_k)):
        return ()
    figure = Figure(
        "capacity",
        "Width against tokens and against keys of a row",
        drawn_by("attnscope.commands.capacity.chart:capacity_curves", record),
        caption=f"Smallest widths found on unions of k random permutations, median over {seed_words(record)}; bounds "
        "dashed. Both axes are logarithmic.",
    )
    return (Section("Curves", figures=(figure,)),)


def seed_words(record: Capacity) -> str:
    """Name the seeds behind the curves: all of them, or some if time ran out."""
    drawn = [need.seeds for need in (*record.against_n, *record.against_k) if need.d is not None]
    named = ", ".join(map(str, record.seeds))
    if len(record.seeds) == 1:
        return f"seed {named}"
    return f"seeds {named}" if all(seeds == record.seeds for seeds in drawn) else f"some of the seeds {named}"


def _numbers(record: Capacity) -> tuple[Section, ...]:
    tables = curve_tables(record)
    background = ('A dash means that nothing was measured, "none" that no width reached the accuracy.',)
    return (Section("Curves as numbers", background=background, tables=tables, link="Numbers"),) if tables else ()


def curve_tables(record: Capacity) -> tuple[Table, ...]:
    """Return each curve as a table: one column for each n or k, one row for each construction and bound."""
    tables = []
    if record.against_n:
        places = tuple(dict.fromkeys(need.n for need in record.against_n))
        lines = _curve_rows(record, record.against_n, [(n, record.k) for n in places])
        tables.append(_curve_table(f"Width against tokens n, k = {record.k}", places, lines))
    if record.against_k:
        at = record.against_k[0].n
        places = tuple(dict.fromkeys(need.k for need in record.against_k))
        lines = _curve_rows(record, record.against_k, [(at, k) for k in places])
        tables.append(_curve_table(f"Width against keys of a row k, n = {at:,}", places, lines))
    return tuple(tables)


def _curve_table(caption: str, places: tuple[int, ...], lines: tuple[tuple[str, ...], ...]) -> Table:
    return Table(("construction", *(f"{place:,}" for place in places)), lines, caption, brief=0)


def _curve_rows(
    record: Capacity, needs: Sequence[Need], places: Sequence[tuple[int, int]]
) -> tuple[tuple[str, ...], ...]:
    known = {(need.method, need.n, need.k): need for need in needs}
    lines = [
        (method, *(_width(known.get((method, n, k))) for n, k in places))
        for method in dict.fromkeys(need.method for need in needs)
    ]
    floors = [floor for n, k in places if (floor := record.floor(n, k))]
    if len(floors) == len(places):
        lines.append(("bound: keys for all patterns", *(f"{floor.universal:,}" for floor in floors)))
        lines.append(("bound: most patterns", *(f"{floor.typical:,}" for floor in floors)))
    return tuple(lines)


def _width(need: Need | None) -> str:
    if need is None or not need.measured:
        return "–"
    return "none" if need.d is None else f"{need.d:,}"
