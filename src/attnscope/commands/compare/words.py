"""The document of a comparison: losses, weights, changes by block, paired findings, and surveys side by side."""

from __future__ import annotations

from collections.abc import Sequence

from attnscope.commands.compare.changes import (
    MOST_OF_A_BLOCK,
    change_sentence,
    change_title,
    change_values,
    change_words,
    labels,
    largest_changes,
    names,
    setting_notes,
)
from attnscope.commands.compare.differences import Change
from attnscope.commands.compare.finding_rows import amount_noun, finding_title, row
from attnscope.commands.compare.paired_findings import IMPROVEMENTS, REGRESSIONS, FindingChange, concerned, identity
from attnscope.commands.compare.record import Comparison
from attnscope.commands.compare.verdict import loss_section, verdict, weights_section
from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.words import corpus_words, headlines
from attnscope.core.finding import Finding
from attnscope.core.words import count, number, numeral
from attnscope.reports.document import Card, Document, Section, Table, rows
from attnscope.reports.words import Level

MOST_CHANGES, BRIEF_CHANGES, BRIEF_LINES = 16, 8, 4
MOST_COLUMNS = 4  # columns of surveys in a terminal
EFFECT = (
    "The effect of a change is its difference divided by its sampling error over sequences, or by a hundredth of the "
    "scale of the measure if that is larger. An effect of 2 can be seen in these sequences; 100 is a whole share, or a "
    "number that was nearly zero on one side."
)
NOT_COMPARABLE = "Not comparable one to one"
MOST_WORDS = (
    f"At most {MOST_OF_A_BLOCK} changes of a block are listed, each of another measure. The block where the models "
    "part comes first, then the block with the largest effect."
)


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
            *loss_section(comparison),
            *weights_section(comparison),
            *([Section("Cautions", notes=notes)] if notes else []),
            _largest(comparison),
            Section(
                "Findings that changed",
                sentences=() if changed else ("No finding changed.",),
                cards=tuple(_card(comparison, pair) for pair in changed) if two else (),
                link="Findings",
            ),
            *([] if two else [_section("Changed findings of each survey", comparison, changed)]),
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
    return Section("Changes by block", background=(EFFECT, MOST_WORDS), tables=(table,))


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
