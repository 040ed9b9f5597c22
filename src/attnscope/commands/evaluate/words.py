"""Which method is true to the model, in sentences, and which differences are real."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.evaluate.record import By, Estimate, Faithfulness, Judged
from attnscope.core.words import clean, count, numeral, percent
from attnscope.reports.terminal import opening, section
from attnscope.reports.words import Verdict

# Columns of two tables: all in one is wider than paper.
FIRST = ("method", "rank", "gap", "soft gap", "seconds")
SECOND = ("method", "positive", "negative", "comprehensive", "sufficient", "soft comprehensive", "soft sufficient")
FEW_TEXTS = 10


def verdict(found: Faithfulness) -> Verdict:
    """The method with the widest gap, and who cannot be told from it."""
    first = next((one for one in found.methods if one.group != "floor"), found.methods[0])
    floor = next((one for one in found.methods if one.group == "floor" and one is not first), None)
    if _nothing_told(found):
        return Verdict("warning", _untold(found))
    # Of many methods one is above 0 by chance: a winner must be surely better than random numbers, all compared.
    if not (first.gap.sure and first.gap.mean > 0 if floor is None else found.real(first.name, floor.name)):
        return Verdict("warning", f"No method is better than chance on {count(found.texts, 'text')} of this model.")
    as_good = equals(found, first)
    also = f"; {_listed(as_good)} cannot be told from it" if as_good else ""
    return Verdict("note", f"{first.title} is the most faithful here (gap {near(first.gap)}){also}.")


def equals(found: Faithfulness, first: Judged) -> list[str]:
    """Methods whose difference to the first may be chance, all comparisons considered."""
    others = [one for one in found.methods if one.name != first.name and one.group != "floor"]
    return [one.title for one in others if not found.real(first.name, one.name)]


def sentences(found: Faithfulness) -> tuple[str, ...]:
    """The verdict; who is no better than chance; which differences are real; what holds with tokens kept in part; and
    what limits such a test."""
    said = [verdict(found).sentence]
    floor = next((one for one in found.methods if one.group == "floor"), None)
    knowing = [one for one in found.methods if one.group != "floor"]
    if floor is not None:
        lost = [one.title for one in knowing if not found.real(one.name, floor.name)]
        if lost:
            said.append(f"Not surely better than random numbers here: {_listed(lost)}.")
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
    """A mean with its interval, two decimals."""
    mean, low, high = (numeral(round(v, 2) + 0.0, 3) for v in (estimate.mean, estimate.low, estimate.high))
    return f"{mean}, {low} to {high}"


def _percent(share: Estimate) -> str:
    return f"{percent(share.mean)} ({percent(share.low)} to {percent(share.high)})"


def rank(found: Faithfulness, one: Judged, by: By = "gap") -> str:
    best, worst = found.ranks(by)[one.name]
    return str(best) if best == worst else f"{best}-{worst}"


def lines(found: Faithfulness, columns: tuple[str, ...] = FIRST) -> list[tuple[str, ...]]:
    """One line for each method, the most faithful first: what FIRST or SECOND names."""

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
    return [tuple(row[name] for name in columns) for row in made]


def difference_lines(found: Faithfulness) -> list[tuple[str, str, str]]:
    """Pairs that are really different, the widest first: better, worse, by how much."""
    titles = {one.name: one.title for one in found.methods}
    sure = sorted((each for each in found.comparisons() if each.real), key=lambda each: -each.mean)
    return [(titles[each.one], titles[each.other], near(Estimate(each.mean, each.low, each.high))) for each in sure]


def _inside(title: str) -> str:
    return title[:1].lower() + title[1:]


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# How faithful explanations are, in a terminal: the verdict and a table of methods.

SHORT = {
    **{"positive": "pos", "negative": "neg", "comprehensive": "compr", "sufficient": "suff"},
    **{"soft comprehensive": "soft compr", "soft sufficient": "soft suff"},
}  # 80 columns are few
MOST_DIFFERENCES = 40


def show(found: Faithfulness, *, verbose: bool = False) -> RenderableType:
    said = sentences(found)[1:]
    parts: list[RenderableType] = [
        *opening(verdict(found), f"{found.model}, {found.class_name}, {found.dtype}"),
        Text(""),
        *(Text(clean(sentence)) for sentence in said),
        *(Text(clean(note), style="dim") for note in (found.notes if verbose else found.notes[:2])),
        section("Methods, the most faithful first (95% intervals)"),
        _table(found, FIRST),
    ]
    if verbose:
        parts += [section("Areas, and what is lost without and with the most important"), _table(found, SECOND)]
        apart = difference_lines(found)[:MOST_DIFFERENCES]
        if apart:
            table = _grid(3)
            for one, other, how in apart:
                table.add_row(Text(clean(one), style="bold"), Text(clean(f"over {other}")), Text(how))
            parts += [section("Differences that are real (intervals hold together)"), table]
    return Group(*parts)


def _table(found: Faithfulness, columns: tuple[str, ...]) -> Table:
    table = _grid(len(columns))
    table.add_row(*(Text(SHORT.get(name, name), style="dim") for name in columns))
    for cells in lines(found, columns):
        table.add_row(*(Text(clean(cell), style="bold" if n == 0 else "") for n, cell in enumerate(cells)))
    return table


def _grid(columns: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for place in range(columns):
        table.add_column(no_wrap=place > 0, overflow="fold")
    return table
