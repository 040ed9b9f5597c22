"""What changed between surveys, in words: the verdict, findings in pairs, and the largest changes with both values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnscope.commands.compare.paired_findings import FindingChange, concerned
from attnscope.commands.compare.record import Change, Comparison
from attnscope.commands.compare.settings import setting_notes
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.words import corpus_words, model_name
from attnscope.core.card import Card
from attnscope.core.finding import Finding
from attnscope.core.words import count, number, numeral, within
from attnscope.reports.words import Verdict

SMALLEST_EFFECT = 0.05  # less is +0.0 where one decimal is shown, and says nothing
LABEL = 28  # letters
MOST_OF_A_MEASURE = 2  # in a list of largest changes, which one measure would fill otherwise
EFFECT = (
    "Changes are ordered by their effect: how far a number moved, divided by how far that measure usually differs from"
    " one place in the model to another. An effect of +1 is a rise as large as that usual difference."
)
_TITLES = {
    "collapse": "Token collapse",
    "nonfinite": "NaN or infinity",
    "sink": "Attention sinks",
    "sink_elsewhere": "Sinks behind the first token",
    "smoothing": "Over-smoothing",
}
_BARE = (
    "",
    "1",
    "share",
    "factor",
    "ratio",
    "cosine",
    "eigenvalue",
    "singular value",
)  # units that say nothing behind a number


def verdict(found: Comparison) -> Verdict:
    """The worst of what is new or got worse, and how many others there are; calm where nothing got worse."""
    regressions = found.regressions()
    if not regressions:
        return Verdict("calm", f"Nothing got worse: {_rest(found.findings) or 'the findings are the same'}.")
    top, others = regressions[0], [pair for pair in found.findings if pair is not regressions[0]]
    told = row(found, top)
    where = f" in {names(found)[top.survey]}" if len(found.surveys) > 2 else ""
    more = _rest(others, more="more ")
    if more and len(found.surveys) > 2:
        more = f"over all surveys {more}"
    lead = "Worse" if top.status == "worse" else "New"
    return Verdict(top.severity, f"{lead}{where}: {_inside(told.title)}{told.tail}{'; ' if more else ''}{more}.")


def _rest(pairs: Sequence[FindingChange], more: str = "") -> str:
    """`1 more got worse, 2 got better`."""
    counts = {status: sum(pair.status == status for pair in pairs) for status in ("worse", "new", "better", "gone")}
    said = [
        f"{counts['worse']} {more}got worse" if counts["worse"] else "",
        f"{counts['new']} {more}{'is' if counts['new'] == 1 else 'are'} new" if counts["new"] else "",
        f"{counts['better']} got better" if counts["better"] else "",
        f"{counts['gone']} {'is' if counts['gone'] == 1 else 'are'} gone" if counts["gone"] else "",
    ]
    return ", ".join(words for words in said if words)


def sentences(found: Comparison) -> tuple[str, ...]:
    """The verdict, why numbers may not be comparable, every finding that changed, and the largest change."""
    told = names(found)
    said = [verdict(found).sentence, *setting_notes(found)]
    for pair in found.findings:
        if pair.status != "same":
            where = f" in {told[pair.survey]}" if len(told) > 2 else ""
            said.append(f"{pair.status.capitalize()}{where}: {row(found, pair).words}. {pair.either.sentence}")
    worth = largest_changes(found, 1)
    return (*said, f"Largest change: {change_sentence(found, worth[0])}." if worth else f"{change_words(found)}.")


@dataclass(frozen=True)
class Row:
    """A pair of findings as a line: `Uniform heads`, ` 4 → 24`, `note → warning`."""

    pair: FindingChange
    title: str
    amount: str
    severity: str

    @property
    def tail(self) -> str:
        return f"{self.amount} ({self.severity})"

    @property
    def words(self) -> str:
        return f"{self.title}{self.tail}"


def row(found: Comparison, pair: FindingChange) -> Row:
    """What became of one finding, in one line: how many heads or places it is about, or its number where it is one."""
    title = finding_title(found, pair.either)
    sides = [side for side in (pair.before, pair.after) if side is not None]
    noun = amount_noun(sides)
    if not noun:
        told, behind = [number(side.value) for side in sides], ""
    else:
        told = [f"{concerned(side):,}" if side is not None else "0" for side in (pair.before, pair.after)]
        behind = "" if noun in title.split() else f" {noun[:-1] if told[-1] == '1' else noun}"
    amounts = " → ".join(dict.fromkeys(told))
    return Row(pair, title, f"{' ' if noun else ': '}{amounts}{behind}", severity_words(pair))


def amount_noun(sides: Sequence[Finding]) -> str:
    """What findings count; nothing where each of them is about one place, and its number says more."""
    if any(side.heads for side in sides):
        return "heads"
    return "places" if any(len(side.layers) > 1 for side in sides) else ""


def severity_words(pair: FindingChange) -> str:
    """`note → warning`, `warning`, `was a note`."""
    old, new = (None if side is None else side.severity for side in (pair.before, pair.after))
    if new is None:
        return f"was {'' if old == 'critical' else 'a '}{old}"
    moved = ", elsewhere" if pair.status == "changed" and concerned(pair.either) == _count_before(pair) else ""
    return f"{new}{moved}" if old in (None, new) else f"{old} → {new}"


def _count_before(pair: FindingChange) -> int:
    return 0 if pair.before is None else concerned(pair.before)


def finding_title(found: Comparison, finding: Finding) -> str:
    """`Uniform heads of the encoder`, `Norm growth above 10`."""
    several = len({stack for survey in found.surveys for stack in survey.stacks}) > 1
    title = _TITLES.get(finding.kind, finding.kind.replace("_", " ").capitalize())
    if finding.kind == "alarm":
        card = card_of(found.surveys, str(finding.details.get("measure")))
        relation = "above" if finding.value > finding.threshold else "below"
        title = f"{card.title if card else finding.details.get('measure')} {relation} {number(finding.threshold)}"
    if finding.details.get("step") == "down":
        title = f"{title} cancelled"
    return f"{title}{within(finding.stack, str(finding.details.get('site')), several)}"


def _inside(title: str) -> str:
    """A title inside a sentence: abbreviations keep their capitals."""
    return title[:1].lower() + title[1:] if title.split(" ", maxsplit=1)[0][1:].islower() else title


def largest_changes(found: Comparison, most: int) -> tuple[Change, ...]:
    """The largest changes that are worth listing, at most two of any measure (and, of many surveys, of each)."""
    chosen: list[Change] = []
    taken: dict[tuple[str, int], int] = {}
    for change in found.changes:
        if abs(change.effect) < SMALLEST_EFFECT or len(chosen) == most:
            break
        key = change.measure, change.survey
        taken[key] = taken.get(key, 0) + 1
        if taken[key] <= MOST_OF_A_MEASURE:
            chosen.append(change)
    return tuple(chosen)


def changes_worth_listing(found: Comparison, most: int) -> tuple[Change, ...]:
    return tuple(change for change in found.changes if abs(change.effect) >= SMALLEST_EFFECT)[:most]


def change_sentence(found: Comparison, change: Change) -> str:
    """`Attention entropy in block 3, head 2: 1.2 → 3.4 nats`."""
    before, after = values(change)
    where = f" in {names(found)[change.survey]}" if len(found.surveys) > 2 else ""
    return f"{change_title(found, change)}{where}: {before} → {after} {unit(found, change)}".rstrip()


def unit(found: Comparison, change: Change) -> str:
    """The unit of a number, where it says something behind one."""
    card = card_of(found.surveys, change.measure)
    return "" if card is None or card.unit in _BARE else card.unit


def values(change: Change) -> tuple[str, str]:
    """Both numbers with as many figures as tell them apart, three where these do."""
    told = [(numeral(change.before, figures), numeral(change.after, figures)) for figures in (3, 4, 6, 9)]
    return next((pair for pair in told if pair[0] != pair[1]), told[-1])


def change_title(found: Comparison, change: Change) -> str:
    """What was measured and where: `Effective rank entering block 3`."""
    card = card_of(found.surveys, change.measure)
    title = card.title if card is not None else change.measure.replace("_", " ")
    part = "" if change.part == "value" else f" ({change.part.replace('_', ' ')})"
    return f"{title}{part} {change_place(found, change)}"


def change_place(found: Comparison, change: Change) -> str:
    """Block N computes, and the stream enters block N."""
    several = len({stack for survey in found.surveys for stack in survey.stacks}) > 1
    tail = f" of the {change.stack}" if several else ""
    card = card_of(found.surveys, change.measure)
    if change.site == "stream" and card is not None and card.of_block:
        return f"in block {change.layer - 1}{tail}"
    if change.site == "stream":
        last = all(depth(one, change.stack) == change.layer for one in (found.first, found.surveys[change.survey]))
        return f"after the last block{tail}" if last else f"entering block {change.layer}{tail}"
    if change.site == "middle":
        return f"inside block {change.layer}{tail}, after attention"
    head = "" if change.head is None else f", head {change.head}"
    cross = "the cross-attention of " if change.site == "cross" else ""
    return f"in {cross}block {change.layer}{tail}{head}"


def depth(survey: Survey, stack: str) -> int | None:
    """How many blocks a stack has; None where the survey does not tell."""
    layers = [key.layer for key in survey.cells if key.stack == stack and key.site in ("self", "cross", "middle")]
    return max(layers) + 1 if layers else None


def change_words(found: Comparison) -> str:
    """What the list of changes is of, or why there is none."""
    changed = len(found.changes)
    numbers = count(changed + found.unchanged, "number")
    if not changed:
        return f"Nothing changed: {numbers} compared, no difference"
    if not changes_worth_listing(found, 1):
        small = f"by less than {SMALLEST_EFFECT} of the usual spread"
        return f"Nothing changed noticeably: {changed:,} of {numbers} differ, {small}"
    return "Largest changes"


def card_of(surveys: Sequence[Survey], measure: str) -> Card | None:
    return next((survey.cards[measure] for survey in surveys if measure in survey.cards), None)


def names(found: Comparison) -> tuple[str, ...]:
    """Names that differ: of the models, else of the corpora, else `first` and `second`, or numbers."""
    whole = [model_name(survey) for survey in found.surveys]
    short = [name.rstrip("/").rsplit("/", 1)[-1] for name in whole]
    for some in (short, whole):
        if len(set(some)) == len(some):
            return tuple(some)
    corpora = [(corpus_words(survey) or ("",))[0] for survey in found.surveys]
    told = [f"{name} ({corpus})" for name, corpus in zip(short, corpora, strict=True)]
    if len(set(told)) == len(told):
        return tuple(told)
    numbers = ("first", "second") if len(short) == 2 else tuple(str(n + 1) for n in range(len(short)))
    return tuple(f"{name} ({n})" for name, n in zip(short, numbers, strict=True))


def labels(found: Comparison) -> tuple[str, ...]:
    """Names for legends and columns: long ones lose their middle, where they still differ without it."""
    told = names(found)
    short = tuple(name if len(name) <= LABEL else f"{name[: LABEL // 2 - 1]}…{name[-LABEL // 2 :]}" for name in told)
    return short if len(set(short)) == len(short) else told
