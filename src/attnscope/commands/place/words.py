"""The sentences and the document of a placement."""

from __future__ import annotations

from attnscope.commands.atlas.words import SHOWN
from attnscope.commands.place.record import HALVES, Placed, Placement
from attnscope.core.measure import measure_cards
from attnscope.core.words import count, numeral, percent, within
from attnscope.reports.document import Document, Figure, Section, Table, drawn_by
from attnscope.reports.words import Verdict, listed

MOST_NAMED = 2  # measures in the verdict
FEW_INSIDE = 0.5  # a measure with fewer of its numbers in the usual range is named
BRIEF = 24  # rows on a screen without --verbose
HOW = (
    "The usual range holds 90% of the numbers of real models of the same kind; every model counts the same. Numbers "
    "that grow with the length of the text are shares of the largest possible one. A number outside of the range is "
    "unusual, not wrong: `attnscope scan` says what is wrong. Models of the atlas read text of the kind that they were "
    "trained on, so this comparison is fair only if this model did too."
)


def verdict(record: Placement) -> Verdict:
    """Say how many numbers are usual, beside the same share of real models, and which measures are least usual."""
    said = [f"In the average measure {percent(record.inside)} of its numbers are in the usual range."]
    if record.others:
        span = f"{percent(record.others[0])} to {percent(record.others[-1])}"
        said.append(f"For {len(record.others)} real {record.kind}s, judged in the same way, it is {span}.")
    odd = [row for row in sorted(record.rows, key=lambda row: row.inside) if row.inside < FEW_INSIDE][:MOST_NAMED]
    if odd:
        said.append(f"Least usual: {listed([_odd(row, several_stacks(record)) for row in odd])}.")
    return Verdict("note" if odd else "calm", " ".join(said))


def several_stacks(record: Placement) -> bool:
    return len({row.stack for row in record.rows}) > 1


def _odd(row: Placed, several: bool) -> str:
    side = f"{percent(row.above)} are above" if row.above > row.below else f"{percent(row.below)} are below"
    return (
        f"{title(row, several)} ({percent(row.inside)} in the usual range, {_span(row.usual_low, row.usual_high)} in"
        f" {row.models} {row.kind}; {side})"
    )


def title(row: Placed, several: bool = False) -> str:
    """Return `spike of the decoder after attention`: a measure in words, and its place if it is not obvious.

    `several` says whether the model has several stacks.
    """
    words = {(measure, part): said for measure, part, _, said in SHOWN if measure in HALVES}
    if (said := words.get((row.measure, row.part))) is None:
        card = measure_cards()[row.measure]
        said = card.title[:1].lower() + card.title[1:] if card.title[1:2].islower() else card.title
        said += "" if card.bound is None else ", as a share of the largest possible"
    return said + within(row.stack, row.site, several) + (" after attention" if row.site == "middle" else "")


def document(record: Placement) -> Document:
    several = several_stacks(record)
    ordered = sorted(record.rows, key=lambda row: (row.inside, title(row, several)))
    return Document(
        verdict(record),
        f"{record.model} among real models",
        about=(f"{count(len(record.rows), 'measure')} beside the real models of the atlas",),
        sections=(
            Section(
                "Where its numbers lie",
                background=(HOW,),
                notes=record.notes,
                figures=(
                    Figure(
                        "placement",
                        "Where each measure lies among the numbers of real models",
                        drawn_by("attnscope.commands.place.chart:places_chart", record),
                        caption="0%: below all of them. Dot: the median of this model. Line: 5% to 95% of its places. "
                        "Band: the usual range.",
                        summary=verdict(record).sentence,
                    ),
                ),
                link="Chart",
            ),
            Section(
                "Every measure, the least usual first",
                tables=(
                    Table(
                        ("measure", "median", "usual", "in range", "models below"),
                        tuple(_line(row, several) for row in ordered),
                        note="Models below: those with a smaller median, of all that have the measure.",
                        brief=BRIEF,
                    ),
                ),
                link="Numbers",
            ),
        ),
    )


def _line(row: Placed, several: bool) -> tuple[str, ...]:
    return (
        title(row, several),
        numeral(row.median, 2),
        _span(row.usual_low, row.usual_high),
        percent(row.inside),
        f"{row.smaller} of {row.models}",
    )


def _span(low: float, high: float) -> str:
    return f"{numeral(low, 2)} to {numeral(high, 2)}"
