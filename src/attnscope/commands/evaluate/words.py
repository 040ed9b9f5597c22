"""The document of `explain --evaluate`: which method is most faithful, and which differences are real."""

from __future__ import annotations

import math

from attnscope.commands.evaluate.record import By, Estimate, Faithfulness, Judged
from attnscope.core.words import count, numeral, percent
from attnscope.reports.document import Document, Figure, Section, Table, drawn_by, rows
from attnscope.reports.words import Verdict, listed
from attnscope.stats.intervals import ENOUGH, fewest

# Columns of three tables, because a single one would be wider than paper.
RANKS = ("method", "rank", "gap", "soft gap", "seconds")
AREAS = ("method", "positive", "negative", "log gap")
LOSSES = ("method", "comprehensive", "sufficient", "soft comprehensive", "soft sufficient")
GAPS = (
    "Tokens are removed in the order that a method gives. With the most important first, the answer should fall at "
    "once (a small positive area). With the least important first, it should stay (a large negative area). The soft "
    "gap keeps tokens in part: more of those with high ranks, and equally much in total for every method, which is "
    "fairer to decoders. The log gap is that of log probabilities, in nats. Special tokens are never removed. The test "
    "compares methods on one model, and does not say how well any of them explains it."
)


def document(found: Faithfulness) -> Document:
    gaps = Figure(
        "gaps",
        "Gap between the two areas",
        drawn_by("attnscope.commands.evaluate.chart:chart", found),
        caption="Lines: 95% intervals over texts (bootstrap-t). Dashed: chance level.",
        summary="Gap of every method with its interval, with whole tokens and with tokens kept in part.",
    )
    curves = Figure(
        "curves",
        "The answer while tokens are removed",
        drawn_by("attnscope.commands.evaluate.chart:curves", found),
        caption="Share of the answer that is left, by the share of removed tokens. The area between is the gap.",
        summary="Two curves for every method: the most important tokens first, and the least important first.",
    )
    losses = "Loss without the most important tokens (comprehensive), and with only these (sufficient)"
    return Document(
        verdict(found),
        f"Which explanation is most faithful to {found.model}?",
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
        "Differences are paired by text, and their 95% intervals are simultaneous. The differences of all other pairs "
        "may be chance."
    )
    lines = tuple(difference_rows(found))
    background = together if lines else "None: on these texts every difference may be chance."
    table = Table(("more faithful", "than", "by (gap)"), lines, align="llr", brief=0)
    tables = (table,) if lines else ()
    return Section("Real differences", background=(background,), tables=tables, link="Differences")


def verdict(found: Faithfulness) -> Verdict:
    """Name the method with the widest gap, and the methods that do not differ from it beyond chance."""
    first = found.best
    floor = next((method for method in found.methods if method.group == "floor" and method is not first), None)
    if _nothing_told(found):
        return Verdict("warning", _untold(found))
    # One of many methods is above 0 by chance, so the winner must be better than random numbers in a corrected test.
    if not (first.gap.sure and first.gap.mean > 0 if floor is None else found.real(first.name, floor.name)):
        sentence = f"Undecided: on {count(found.texts, 'text')} no method is surely better than random numbers."
        return Verdict("warning", sentence)
    as_good = equals(found, first)
    if as_good:
        sentence = f"Undecided: {first.title} has the widest gap ({near(first.gap)}) and is better than random numbers"
        return Verdict("note", f"{sentence}; its lead over {listed(as_good)} may be chance.")
    return Verdict("note", f"{first.title} is the most faithful here (gap {near(first.gap)}).")


def equals(found: Faithfulness, first: Judged) -> list[str]:
    """Return the methods whose difference from the first may be chance, corrected for all comparisons."""
    others = [each for each in found.methods if each is not first and each.group != "floor" and not each.own_test]
    return [method.title for method in others if not found.real(first.name, method.name)]


def _sentences(found: Faithfulness) -> tuple[str, ...]:
    """Return sentences on methods that are no better than chance, on real differences, on soft gaps, and on limits."""
    sentences = []
    floor = next((method for method in found.methods if method.group == "floor"), None)
    knowing = [method for method in found.methods if method.group != "floor"]
    if floor is not None:
        lost = [method.title for method in knowing if not found.real(method.name, floor.name)]
        if lost:
            sentences.append(f"Not significantly better than random numbers here: {listed(lost)}.")
    sentences += [_real(found), _soft(found), *_own_tests(found), _judged_on(found)]
    if found.accuracy is not None:
        sentences.append(f"The model names the true class of {_percent(found.accuracy)} of these texts.")
    if found.texts > 1 and len(set(found.documents)) == 1:
        sentences.append(
            "All texts come from one document, so these results hold for other parts of it and not for other documents."
        )
    if found.independent < ENOUGH:
        sentences.append(
            f"{_how_many(found).capitalize()} are too few to be sure of a single interval, which can then miss the "
            f"true mean in more than 7 of 100 samples: give {ENOUGH}."
        )
    return tuple(filter(None, sentences))


def _real(found: Faithfulness) -> str:
    pairs = found.comparisons()
    if not pairs:
        return ""
    if _nothing_told(found):
        return ""  # the verdict says it
    sure = sum(each.real for each in pairs)
    return (
        f"{sure} of {count(len(pairs), 'difference')} between methods are real, at 95% confidence for all of them "
        "together. A rank such as 2-4 means that one method is surely better and the fifth is surely worse."
    )


def _nothing_told(found: Faithfulness) -> bool:
    """Return whether there are so few texts or documents that simultaneous intervals are infinite."""
    return any(math.isinf(each.high) for each in found.comparisons())


def _untold(found: Faithfulness) -> str:
    needed = fewest(len(found.comparisons()))
    return f"Undecided: {_how_many(found)} are too few to be sure of any difference: give {needed} or more."


def _how_many(found: Faithfulness) -> str:
    where = f" of {count(found.independent, 'document')}" if found.independent < found.texts else ""
    return f"{count(found.texts, 'text')}{where}"


def _own_tests(found: Faithfulness) -> list[str]:
    """Mark methods that the judge favours."""
    return [
        f"{method.title} replaces tokens as this test does. It is judged by its own operation, so it is listed but not "
        "named as the most faithful."
        for method in found.methods
        if method.own_test
    ]


def _soft(found: Faithfulness) -> str:
    """Say whether the soft test, which is fairer to decoders, puts the same method first."""
    knowing = [method for method in found.methods if method.group != "floor" and not method.own_test]
    first, soft = (
        max(knowing, key=lambda method: getattr(method, by).mean, default=None) for by in ("gap", "soft_gap")
    )
    if first is None or soft is None or _nothing_told(found):
        return ""
    kept = "With tokens kept in part (soft gap),"
    if first is soft:
        return f"{kept} {_inside(soft.title)} also comes first ({near(soft.soft_gap)})."
    surely = "" if found.real(soft.name, first.name, "soft_gap") else ", which may be chance"
    return f"{kept} {_inside(soft.title)} comes first ({near(soft.soft_gap)}){surely}."


def _judged_on(found: Faithfulness) -> str:
    return (
        f"Judged on {count(found.texts, 'text')} ({found.tokens:,} tokens) of {found.corpus}, by {found.answer}. "
        f"Removed tokens are replaced by {found.baseline}."
    )


def near(estimate: Estimate) -> str:
    """Return a mean with its interval, to two decimals."""
    if math.isinf(estimate.low) or math.isinf(estimate.high):
        return f"{numeral(round(estimate.mean, 2) + 0.0, 3)}, interval unknown"
    mean, low, high = (numeral(round(v, 2) + 0.0, 3) for v in (estimate.mean, estimate.low, estimate.high))
    return f"{mean}, {low} to {high}"


def _percent(share: Estimate) -> str:
    return f"{percent(share.mean)} ({percent(share.low)} to {percent(share.high)})"


def rank(found: Faithfulness, method: Judged, by: By = "gap") -> str:
    best, worst = found.ranks(by)[method.name]
    return str(best) if best == worst else f"{best}-{worst}"


def method_rows(found: Faithfulness, columns: tuple[str, ...] = RANKS) -> tuple[tuple[str, ...], ...]:
    """Return one row for each method, the most faithful first."""

    def mean(estimate: Estimate | None) -> str:
        return "" if estimate is None else numeral(round(estimate.mean, 2) + 0.0, 3)

    cells = [
        {
            "method": f"{method.title} (own test)" if method.own_test else method.title,
            "rank": rank(found, method),
            "gap": near(method.gap),
            "soft gap": near(method.soft_gap),
            "seconds": numeral(method.seconds, 2),
            "positive": mean(method.positive),
            "negative": mean(method.negative),
            "log gap": mean(method.log_gap),
            "comprehensive": mean(method.comprehensiveness),
            "sufficient": mean(method.sufficiency),
            "soft comprehensive": mean(method.soft_comprehensiveness),
            "soft sufficient": mean(method.soft_sufficiency),
        }
        for method in found.methods
    ]
    return tuple(tuple(row[name] for name in columns) for row in cells)


def difference_rows(found: Faithfulness) -> list[tuple[str, str, str]]:
    """Return (better, worse, difference) of the pairs with a real difference, the largest first."""
    titles = {method.name: method.title for method in found.methods}
    sure = sorted((each for each in found.comparisons() if each.real), key=lambda each: -each.mean)
    return [(titles[each.one], titles[each.other], near(Estimate(each.mean, each.low, each.high))) for each in sure]


def _inside(title: str) -> str:
    return title[:1].lower() + title[1:]
