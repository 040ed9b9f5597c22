"""Which method is true to the model, in sentences, and which differences are real."""

from __future__ import annotations

import math

from attnscope.commands.evaluate.record import By, Estimate, Faithfulness, Judged
from attnscope.core.words import count, numeral, percent
from attnscope.reports.document import Document, Figure, Section, Table, drawn_by, rows
from attnscope.reports.words import Verdict, listed

# Columns of three tables: all in one is wider than paper.
RANKS = ("method", "rank", "gap", "soft gap", "seconds")
AREAS = ("method", "positive", "negative")
LOSSES = ("method", "comprehensive", "sufficient", "soft comprehensive", "soft sufficient")
FEW_TEXTS = 10
GAPS = (
    "Tokens are taken away in the order that a method gives. With the most important first the answer should fall at "
    "once (a small positive area), with the least important first it should stay (a large negative area). The soft gap "
    "keeps tokens in part, in proportion to their numbers and as much in all for every method, which is fairer to "
    "decoders. Texts with holes are texts that the model never saw: such a test tells methods apart on one model, and "
    "does not say how well any of them explains it."
)


def document(found: Faithfulness) -> Document:
    gaps = Figure(
        "gaps",
        "How far the two areas are apart",
        drawn_by("attnscope.commands.evaluate.chart:chart", found),
        caption="Lines: 95% of means over texts drawn again. Dashed: what a method that knows nothing has.",
        summary="Gap of every method with its interval, with whole tokens and with tokens kept in part.",
    )
    curves = Figure(
        "curves",
        "The answer while tokens go",
        drawn_by("attnscope.commands.evaluate.chart:curves", found),
        caption="As a share of the whole answer, over the share of tokens that are gone. The area between is the gap.",
        summary="Two curves for every method: the most important tokens first, and the least important first.",
    )
    losses = "What is lost without the most important tokens (comprehensive), and with them alone (sufficient)"
    return Document(
        verdict(found),
        f"Which explanation is true to {found.model}?",
        about=(f"{found.model}, {found.class_name} · {found.corpus} · {found.dtype}",),
        sections=(
            Section("Findings", sentences=_sentences(found), notes=found.notes),
            Section("Gaps", background=(GAPS,), figures=(gaps,)),
            Section("Curves", figures=(curves,)),
            Section(
                "Methods, the most faithful first (95% intervals)",
                tables=(Table(RANKS, method_rows(found)),),
                link="Ranks",
            ),
            _differences(found),
            Section(
                "Areas",
                tables=(
                    Table(AREAS, method_rows(found, AREAS), "Areas under the answer"),
                    Table(LOSSES, method_rows(found, LOSSES), losses),
                ),
                detail=True,
            ),
        ),
        provenance=rows(found.provenance),
    )


def _differences(found: Faithfulness) -> Section:
    together = (
        "Taken text by text; the intervals of all pairs hold together with 95% certainty. Pairs that are not here "
        "cannot be told apart."
    )
    lines = tuple(difference_rows(found))
    background = together if lines else "None: with these texts every difference may be chance."
    table = Table(("more faithful", "than", "by (gap)"), lines, align="llr", brief=0)
    tables = (table,) if lines else ()
    return Section("Real differences", background=(background,), tables=tables, link="Differences")


def verdict(found: Faithfulness) -> Verdict:
    """Name the method with the widest gap, and the methods that do not differ from it beyond chance."""
    first = next((one for one in found.methods if one.group != "floor"), found.methods[0])
    floor = next((one for one in found.methods if one.group == "floor" and one is not first), None)
    if _nothing_told(found):
        return Verdict("warning", _untold(found))
    # Of many methods one is above 0 by chance: a winner must be surely better than random numbers, all compared.
    if not (first.gap.sure and first.gap.mean > 0 if floor is None else found.real(first.name, floor.name)):
        return Verdict("warning", f"No method is better than chance on {count(found.texts, 'text')} of this model.")
    as_good = equals(found, first)
    also = f"; {listed(as_good)} cannot be told from it" if as_good else ""
    return Verdict("note", f"{first.title} is the most faithful here (gap {near(first.gap)}){also}.")


def equals(found: Faithfulness, first: Judged) -> list[str]:
    """Methods whose difference to the first may be chance, all comparisons considered."""
    others = [one for one in found.methods if one.name != first.name and one.group != "floor"]
    return [one.title for one in others if not found.real(first.name, one.name)]


def _sentences(found: Faithfulness) -> tuple[str, ...]:
    """Say which methods are no better than chance, which differences are real, what holds with tokens kept in part, and
    what limits such a test."""
    said = []
    floor = next((one for one in found.methods if one.group == "floor"), None)
    knowing = [one for one in found.methods if one.group != "floor"]
    if floor is not None:
        lost = [one.title for one in knowing if not found.real(one.name, floor.name)]
        if lost:
            said.append(f"Not surely better than random numbers here: {listed(lost)}.")
    said += [_real(found), _soft(found), _judged_on(found)]
    if found.accuracy is not None:
        said.append(f"The model names the true class of {_percent(found.accuracy)} of these texts.")
    if found.texts > 1 and len(set(found.documents)) == 1:
        said.append(
            "All texts are cut from one document: what is said here is of other stretches of this document, and not of "
            "others."
        )
    if found.texts < FEW_TEXTS:
        said.append(f"{count(found.texts, 'text').capitalize()} are few: intervals are too narrow below {FEW_TEXTS}.")
    return tuple(filter(None, said))


def _real(found: Faithfulness) -> str:
    pairs = found.comparisons()
    if not pairs:
        return ""
    if _nothing_told(found):
        return ""  # the verdict says it
    sure = sum(each.real for each in pairs)
    return (
        f"{sure} of {count(len(pairs), 'difference')} between methods are real: with 95% certainty all of them, since "
        "intervals are widened for their number. A rank is between the methods that are surely better and those that "
        "are surely worse."
    )


def _nothing_told(found: Faithfulness) -> bool:
    """So few texts or documents that intervals which hold together are without end."""
    return found.too_few_documents or any(math.isinf(each.high) for each in found.comparisons())


def _untold(found: Faithfulness) -> str:
    documents = len(set(found.documents))
    where = f" of {count(documents, 'document')}" if documents < found.texts else ""
    return (
        f"From {count(found.texts, 'text')}{where} no difference can be told from chance: give six documents or more."
    )


def _soft(found: Faithfulness) -> str:
    """Whether the other test, which is fairer to decoders, puts the same method first."""
    knowing = [one for one in found.methods if one.group != "floor"]
    first, soft = (max(knowing, key=lambda one: getattr(one, by).mean, default=None) for by in ("gap", "soft_gap"))
    if first is None or soft is None or _nothing_told(found):
        return ""
    kept = "With tokens kept in part, as much in all for every method,"
    if first is soft:
        return f"{kept} {_inside(soft.title)} comes first as well (soft gap {near(soft.soft_gap)})."
    surely = "" if found.real(soft.name, first.name, "soft_gap") else ", which may be chance"
    return f"{kept} {_inside(soft.title)} comes first (soft gap {near(soft.soft_gap)}){surely}."


def _judged_on(found: Faithfulness) -> str:
    return (
        f"Judged on {count(found.texts, 'text')} ({found.tokens:,} tokens) of {found.corpus}, by {found.answer} while "
        f"tokens become {found.baseline}."
    )


def near(estimate: Estimate) -> str:
    """Return a mean with its interval, to two decimals."""
    mean, low, high = (numeral(round(v, 2) + 0.0, 3) for v in (estimate.mean, estimate.low, estimate.high))
    return f"{mean}, {low} to {high}"


def _percent(share: Estimate) -> str:
    return f"{percent(share.mean)} ({percent(share.low)} to {percent(share.high)})"


def rank(found: Faithfulness, one: Judged, by: By = "gap") -> str:
    best, worst = found.ranks(by)[one.name]
    return str(best) if best == worst else f"{best}-{worst}"


def method_rows(found: Faithfulness, columns: tuple[str, ...] = RANKS) -> tuple[tuple[str, ...], ...]:
    """Return one row for each method, the most faithful first."""

    def mean(estimate: Estimate) -> str:
        return numeral(round(estimate.mean, 2) + 0.0, 3)

    made = [
        {
            "method": one.title,
            "rank": rank(found, one),
            "gap": near(one.gap),
            "soft gap": near(one.soft_gap),
            "seconds": numeral(one.seconds, 2),
            "positive": mean(one.positive),
            "negative": mean(one.negative),
            "comprehensive": mean(one.comprehensiveness),
            "sufficient": mean(one.sufficiency),
            "soft comprehensive": mean(one.soft_comprehensiveness),
            "soft sufficient": mean(one.soft_sufficiency),
        }
        for one in found.methods
    ]
    return tuple(tuple(row[name] for name in columns) for row in made)


def difference_rows(found: Faithfulness) -> list[tuple[str, str, str]]:
    """Pairs that are really different, the widest first: better, worse, by how much."""
    titles = {one.name: one.title for one in found.methods}
    sure = sorted((each for each in found.comparisons() if each.real), key=lambda each: -each.mean)
    return [(titles[each.one], titles[each.other], near(Estimate(each.mean, each.low, each.high))) for each in sure]


def _inside(title: str) -> str:
    return title[:1].lower() + title[1:]
