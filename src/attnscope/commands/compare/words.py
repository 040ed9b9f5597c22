"""The sentences of a comparison: verdict, paired findings, largest changes, and all surveys side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attnscope.commands.compare.changes import (
    MOST_OF_A_MEASURE,
    card_of,
    change_sentence,
    change_title,
    change_values,
    change_words,
    labels,
    largest_changes,
    names,
    setting_notes,
)
from attnscope.commands.compare.paired_findings import IMPROVEMENTS, REGRESSIONS, FindingChange, concerned, identity
from attnscope.commands.compare.record import Change, Comparison
from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.words import corpus_words, headlines
from attnscope.core.finding import LEVELS, Finding
from attnscope.core.words import count, number, numeral, within
from attnscope.reports.document import Card, Document, Section, Table, rows
from attnscope.reports.words import Level, Verdict

MOST_CHANGES, BRIEF_CHANGES, BRIEF_LINES = 16, 8, 4
MOST_COLUMNS = 4  # columns of surveys in a terminal
EFFECT = (
    "Changes are ordered by their effect: how far a number moved, divided by the usual spread of that measure over "
    "places in the model. An effect of +1 is an increase as large as that spread."
)
NOT_COMPARABLE = "Not comparable one to one"
MOST_WORDS = f"At most {MOST_OF_A_MEASURE} changes of one measure are listed for each survey."
_TITLES = {
    "collapse": "Token collapse",
    "nonfinite": "NaN or infinity",
    "sink": "Attention sinks",
    "sink_elsewhere": "Sinks after the first token",
    "smoothing": "Over-smoothing",
}


def document(comparison: Comparison) -> Document:
    two = len(comparison.surveys) == 2
    title = (
        " → ".join(names(comparison)) if two else f"{names(comparison)[0]} against {', '.join(names(comparison)[1:])}"
    )
    changed = [pair for pair in comparison.findings if pair.status != "same"]
    same = [pair for pair in comparison.findings if pair.status == "same"]
    notes = tuple(f"{NOT_COMPARABLE}. {note}" for note in setting_notes(comparison))
    kept = "both" if two else "the first survey and another one"
    return Document(
        verdict(comparison),
        title,
        about=(title, _read(comparison)),
        sections=(
            *([Section(NOT_COMPARABLE, notes=notes, link="Cautions")] if notes else []),
            Section(
                "What got worse and better",
                sentences=() if changed else ("No finding changed.",),
                cards=tuple(_card(comparison, pair) for pair in changed) if two else (),
                link="What changed",
            ),
            *([] if two else [_section("Findings that changed", comparison, changed)]),
            _largest(comparison),
            Section("Side by side", tables=_sides(comparison)),
            _section(f"The same in {kept}", comparison, same),
        ),
        provenance=_provenance(comparison),
    )


def _section(title: str, comparison: Comparison, pairs: Sequence[FindingChange]) -> Section:
    return Section(title, cards=tuple(_card(comparison, pair) for pair in pairs), detail=True)


def _read(comparison: Comparison) -> str:
    corpora = [", ".join(corpus_words(survey)) or "ready batches" for survey in comparison.surveys]
    if len(set(corpora)) == 1:
        return f"{'Both' if len(corpora) == 2 else 'All'} measured on {corpora[0]}"
    return f"Measured on {'; '.join(corpora)}"


def verdict(comparison: Comparison) -> Verdict:
    """Say which regression is the worst and how many others there are, or that nothing got worse."""
    regressions = comparison.regressions()
    if not regressions:
        return Verdict("calm", f"Nothing got worse: {_rest(comparison.findings) or 'the findings are the same'}.")
    top, others = regressions[0], [pair for pair in comparison.findings if pair is not regressions[0]]
    line = row(comparison, top)
    where = f" in {names(comparison)[top.survey]}" if len(comparison.surveys) > 2 else ""
    more = _rest(others, more="more ")
    if more and len(comparison.surveys) > 2:
        more = f"over all surveys {more}"
    lead = "Worse" if top.status == "worse" else "New"
    return Verdict(
        LEVELS[top.severity], f"{lead}{where}: {_inside(line.title)}{line.tail}{'; ' if more else ''}{more}."
    )


def _rest(pairs: Sequence[FindingChange], more: str = "") -> str:
    """Return `1 more got worse, 2 got better`."""
    counts = {status: sum(pair.status == status for pair in pairs) for status in ("worse", "new", "better", "gone")}
    words = {
        "worse": f"{more}got worse",
        "new": f"{more}{'is' if counts['new'] == 1 else 'are'} new",
        "better": "got better",
        "gone": f"{'is' if counts['gone'] == 1 else 'are'} gone",
    }
    return ", ".join(f"{n} {words[status]}" for status, n in counts.items() if n)


def sentences(comparison: Comparison) -> tuple[str, ...]:
    """Return the verdict, reasons why numbers may not be comparable, every changed finding, and the largest change."""
    lines = [verdict(comparison).sentence, *setting_notes(comparison)]
    for pair in comparison.findings:
        if pair.status != "same":
            where = f" in {names(comparison)[pair.survey]}" if len(comparison.surveys) > 2 else ""
            lines.append(f"{pair.status.capitalize()}{where}: {row(comparison, pair).words}. {pair.either.sentence}")
    worth = largest_changes(comparison, 1)
    return (
        *lines,
        f"Largest change: {change_sentence(comparison, worth[0])}." if worth else f"{change_words(comparison)}.",
    )


class Row(NamedTuple):
    """A pair of findings as a line: `Uniform heads`, ` 4 → 24`, `note → to know`."""

    title: str
    amount: str
    severity: str

    @property
    def tail(self) -> str:
        return f"{self.amount} ({self.severity})"

    @property
    def words(self) -> str:
        return f"{self.title}{self.tail}"


def row(comparison: Comparison, pair: FindingChange) -> Row:
    """Return a pair as a line, with the number of heads or places before and after, or else its value."""
    title = finding_title(comparison, pair.either)
    sides = [side for side in (pair.before, pair.after) if side is not None]
    noun = amount_noun(sides)
    if not noun:
        amounts, tail = [number(side.value) for side in sides], ""
    else:
        amounts = [f"{concerned(side):,}" if side is not None else "0" for side in (pair.before, pair.after)]
        tail = "" if noun in title.split() else f" {noun[:-1] if amounts[-1] == '1' else noun}"
    return Row(title, f"{' ' if noun else ': '}{' → '.join(dict.fromkeys(amounts))}{tail}", severity_words(pair))


def amount_noun(sides: Sequence[Finding]) -> str:
    """Return the noun for what these findings count, "heads" or "places"; "" if each concerns one place."""
    if any(side.heads for side in sides):
        return "heads"
    return "places" if any(len(side.layers) > 1 for side in sides) else ""


def severity_words(pair: FindingChange) -> str:
    """Return `note → to know`, `wrong`, `was a note`."""
    old, new = (None if side is None else side.severity_words for side in (pair.before, pair.after))
    if new is None:
        return f"was {'a ' if old == 'note' else ''}{old}"
    before = 0 if pair.before is None else concerned(pair.before)
    moved = ", elsewhere" if pair.status == "changed" and concerned(pair.either) == before else ""
    return f"{new}{moved}" if old in (None, new) else f"{old} → {new}"


def finding_title(comparison: Comparison, finding: Finding) -> str:
    """Return `Uniform heads of the encoder`, `Norm growth above 10`."""
    several = len({stack for survey in comparison.surveys for stack in survey.stacks}) > 1
    title = _TITLES.get(finding.kind, finding.kind.replace("_", " ").capitalize())
    if finding.kind == "alarm":
        card = card_of(comparison.surveys, str(finding.details.get("measure")))
        relation = "above" if finding.value > finding.threshold else "below"
        title = f"{card.title if card else finding.details.get('measure')} {relation} {number(finding.threshold)}"
    if finding.details.get("step") == "down":
        title = f"{title} cancelled"
    return f"{title}{within(finding.stack, str(finding.details.get('site')), several)}"


def _inside(title: str) -> str:
    """Return a title for the middle of a sentence; abbreviations keep their capitals."""
    return title[:1].lower() + title[1:] if title.split(" ", maxsplit=1)[0][1:].islower() else title


def _card(comparison: Comparison, pair: FindingChange) -> Card:
    level: Level = (
        "calm" if pair.status in IMPROVEMENTS else pair.either.level if pair.status in REGRESSIONS else "note"
    )
    line = row(comparison, pair)
    name = names(comparison)[pair.survey]
    sides = (("Before", pair.before), ("After", pair.after))
    facts = [(label, ("No such finding." if side is None else side.sentence,)) for label, side in sides]
    if pair.status in REGRESSIONS and pair.after is not None and pair.after.advice:
        facts.append(("Advice", (pair.after.advice,)))
    where = "" if len(comparison.surveys) == 2 else f" in {name}"
    return Card(level, pair.status, f"{line.title}{line.amount}{where}", tuple(facts), about=line.severity)


def _largest(comparison: Comparison) -> Section:
    changes = largest_changes(comparison, MOST_CHANGES)
    if not changes:
        return Section("Changes", sentences=(f"{change_words(comparison)}.",))
    two = len(comparison.surveys) == 2
    heading = ("what and where", *(() if two else ("survey",)), "change", "effect")
    lines = tuple(_line(comparison, change) for change in changes)
    table = Table(heading, lines, align="llr" if two else "lllr", brief=BRIEF_CHANGES if two else BRIEF_LINES)
    return Section("Largest changes", background=(EFFECT, MOST_WORDS), tables=(table,))


def _line(comparison: Comparison, change: Change) -> tuple[str, ...]:
    survey = () if len(comparison.surveys) == 2 else (labels(comparison)[change.survey],)
    return (change_title(comparison, change), *survey, change_values(comparison, change), f"{change.effect:+.1f}")


def _sides(comparison: Comparison) -> tuple[Table, ...]:
    """Return headline numbers and findings with a column for each survey."""
    sides = [
        {line.label: line.value for line in headlines(s, s.table(), comparison.thresholds)} for s in comparison.surveys
    ]
    numbers = [(name, *(side.get(name, "–") for side in sides)) for name in dict.fromkeys(n for s in sides for n in s)]
    diagnosed = [diagnose(survey, comparison.thresholds) for survey in comparison.surveys]
    titles = {identity(pair.either): finding_title(comparison, pair.either) for pair in comparison.findings}
    lines = []
    for name, title in titles.items():
        cells = [[finding for finding in findings if identity(finding) == name] for findings in diagnosed]
        noun = amount_noun([finding for cell in cells for finding in cell])
        lines.append((title, *(", ".join(_found(finding, noun) for finding in cell) or "–" for cell in cells)))
    heading = ("", *labels(comparison))
    brief = BRIEF_LINES if 2 < len(comparison.surveys) <= MOST_COLUMNS else 0
    return (
        Table(heading, tuple(numbers), caption="Headline numbers", brief=brief),
        Table(heading, tuple(lines), caption="Findings", brief=brief),
    )


def _found(finding: Finding, noun: str) -> str:
    """Return `24 heads (to know)`, `4 heads`."""
    amount = count(concerned(finding), noun[:-1]) if noun else number(finding.value)
    return amount if finding.severity == "note" else f"{amount} ({finding.severity_words})"


def _provenance(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the provenance rows of all surveys; a row name ends with ≠ if its values differ."""
    sides = [dict(rows({k: v for k, v in s.provenance.items() if k != "not_measured"})) for s in comparison.surveys]
    lines = []
    for name in dict.fromkeys(name for side in sides for name in side):
        values = dict.fromkeys(side.get(name, "–") for side in sides)
        label = name if len(values) == 1 else f"{name} ≠"
        lines.append(
            (label, " | ".join(side.get(name, "–") for side in sides) if len(values) > 1 else next(iter(values)))
        )
    return [*lines, *((f"threshold {name}", numeral(v)) for name, v in sorted(vars(comparison.thresholds).items()))]
