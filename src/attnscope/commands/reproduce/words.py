"""The sentences of a reproduction."""

from __future__ import annotations

import math

from attnscope.commands.reproduce.record import Reproduction
from attnscope.core.experiment import Claim, Number, median
from attnscope.core.words import count, numeral
from attnscope.reports.document import Card, Document, Figure, Section, drawn_by, rows
from attnscope.reports.words import Level, Verdict

LEVELS: dict[str, Level] = {
    "reproduced": "calm",
    "not reproduced": "warning",
    "contradicted": "critical",
    "not run": "note",
}
NAMED_CLAIMS = 3  # claims named in the verdict


def document(reproduction: Reproduction) -> Document:
    seconds = f"{reproduction.seconds:.0f} s" if reproduction.seconds < 120 else f"{reproduction.seconds / 60:.0f} min"
    seeds = count(len(reproduction.seeds), "seed")
    run = f"arXiv:{reproduction.paper} · preset {reproduction.preset} · {seeds} · {seconds}"
    figures = tuple(
        # Figures are numbered on the page, because their names come from a file and would end up in HTML attributes.
        Figure(
            f"figure-{place}",
            figure.title,
            drawn_by("attnscope.reports.experiment_figure:experiment_figure", figure, title=False),
            caption=figure.caption,
        )
        for place, figure in enumerate(reproduction.figures)
    )
    sections = (
        Section("Claims", cards=tuple(_card(claim, reproduction.paper) for claim in reproduction.claims)),
        Section("Figures", figures=figures),
        Section(
            "What to do with it", sentences=(reproduction.advice,) if reproduction.advice else (), link="What to do"
        ),
        Section("Remarks", items=reproduction.remarks, detail=True),
    )
    return Document(
        verdict(reproduction),
        reproduction.title,
        about=(reproduction.summary, run),
        sections=tuple(part for part in sections if part.cards or part.figures or part.sentences or part.items),
        provenance=[("seeds", ", ".join(map(str, reproduction.seeds))), *sorted(rows(reproduction.params))],
        command=f"reproduce {reproduction.experiment}",
    )


def _card(claim: Claim, paper: str) -> Card:
    contradicted = f"; contradicted if {_all(claim.fails)}" if claim.fails else ""
    given = f"; judged only if {_all(claim.given)}" if claim.given else ""
    return Card(
        LEVELS[claim.verdict],
        claim.verdict,
        f"{claim.statement} ({_not_judged(claim)})" if claim.missing else claim.statement,
        facts=(
            ("Expected", (claim.expected,)),
            ("Measured", _spreads(claim) or ("nothing",)),
            ("Rule", (f"reproduced if {_all(claim.holds)}{contradicted}{given} (median over seeds)",)),
        ),
        about=claim.name if claim.paper == paper else f"{claim.name} · arXiv:{claim.paper}",
    )


def _all(bounds: tuple[object, ...]) -> str:
    return " and ".join(map(str, bounds))


def sentences(reproduction: Reproduction) -> tuple[str, ...]:
    """Return a sentence on all claims together, one on each, and the remarks of the experiment."""
    verdicts = ", ".join(f"{number} {verdict}" for verdict, number in reproduction.counts.items() if number)
    return (
        f"Of {count(len(reproduction.claims), 'claim')}: {verdicts}.",
        *(
            f"{claim.verdict.capitalize()}: {claim.statement.rstrip('.')} "
            f"({claim.expected}: {'; '.join(measured_words(claim)) or 'nothing was measured'})."
            for claim in reproduction.claims
        ),
        *reproduction.remarks,
    )


def measured_words(claim: Claim) -> tuple[str, ...]:
    """Return a text for each quantity, `sort accuracy 0.98 (0.97 to 0.99 over 5 seeds)`, then why a claim is not
    judged.
    """
    return (*_spreads(claim), _not_judged(claim)) if claim.missing else _spreads(claim)


def _not_judged(claim: Claim) -> str:
    needs = " and ".join(str(bound).replace("_", " ") for bound in claim.missing)
    return f"not judged, because that needs {needs}"


def _spreads(claim: Claim) -> tuple[str, ...]:
    return tuple(_spread(name, values) for name, values in claim.measured.items())


def _spread(name: str, values: tuple[Number, ...]) -> str:
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    words = f"{name.replace('_', ' ')} {numeral(median(values))}"
    alike = len(set(numbers)) < 2 and len(numbers) == len(values)
    if alike or not numbers:
        return words
    return f"{words} ({numeral(min(numbers))} to {numeral(max(numbers))} over {len(values)} seeds)"


def verdict(reproduction: Reproduction) -> Verdict:
    """Say how many claims were reproduced and which were not. The verdict is critical if a claim is contradicted."""
    counts, total = reproduction.counts, len(reproduction.claims)
    if total and counts["reproduced"] == total:
        return Verdict("calm", "The claim is reproduced." if total == 1 else f"All {total} claims are reproduced.")
    held = counts["reproduced"]
    first = f"{held or 'None'} of {count(total, 'claim')} {'is' if held < 2 else 'are'} reproduced"
    others = [
        f"{_number(counts[verdict])} {verdict} ({_named(reproduction, verdict)})"
        for verdict in ("contradicted", "not reproduced", "not run")
        if counts[verdict]
    ]
    level: Level = "critical" if counts["contradicted"] else "warning" if counts["not reproduced"] else "note"
    return Verdict(level, f"{first}; {', '.join(others)}." if others else f"{first}.")


def _number(amount: int) -> str:
    return f"{amount} {'is' if amount == 1 else 'are'}"


def _named(reproduction: Reproduction, verdict: str) -> str:
    names = [claim.name.replace("_", " ") for claim in reproduction.claims if claim.verdict == verdict]
    more = len(names) - NAMED_CLAIMS
    return ", ".join(names[:NAMED_CLAIMS]) + (f" and {more} more" if more > 0 else "")
