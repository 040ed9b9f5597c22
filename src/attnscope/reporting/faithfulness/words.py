"""Which method is true to the model, in sentences, and which differences are real."""

from __future__ import annotations

from attnscope.core.numerals import numeral
from attnscope.core.words import count
from attnscope.records.faithfulness import Estimate, Faithfulness, Judged
from attnscope.reporting.verdict import Verdict

HEADING = ("method", "gap", "positive", "negative", "comprehensive", "sufficient", "seconds")
FEW_TEXTS = 10


def verdict(found: Faithfulness) -> Verdict:
    """The method with the widest gap, and who cannot be told from it."""
    first = next((one for one in found.methods if one.group != "floor"), found.methods[0])
    if not first.gap.sure or first.gap.mean <= 0:
        return Verdict("warning", f"No method is better than chance on {count(found.texts, 'text')} of this model.")
    as_good = equals(found, first)
    also = f"; {_listed(as_good)} cannot be told from it" if as_good else ""
    return Verdict("info", f"{first.title} is the most faithful here (gap {near(first.gap)}){also}.")


def equals(found: Faithfulness, first: Judged) -> list[str]:
    """Methods whose difference to the first may be chance."""
    others = [one for one in found.methods if one.name != first.name and one.group != "floor"]
    return [one.title for one in others if not found.difference(first.name, one.name).sure]


def sentences(found: Faithfulness) -> tuple[str, ...]:
    """The verdict; who is no better than chance; and what limits such a test."""
    said = [verdict(found).sentence]
    floor = next((one for one in found.methods if one.group == "floor"), None)
    knowing = [one for one in found.methods if one.group != "floor"]
    if floor is not None:
        lost = [one.title for one in knowing if not _above(found, one, floor)]
        if lost:
            said.append(f"No better than random numbers here: {_listed(lost)}.")
    said.append(
        f"Judged on {count(found.texts, 'text')} ({found.tokens:,} tokens) of {found.corpus}, by {found.answer} while "
        f"tokens become {found.baseline}."
    )
    if found.texts < FEW_TEXTS:
        said.append(f"{count(found.texts, 'text').capitalize()} are few: intervals are too narrow below {FEW_TEXTS}.")
    return tuple(said)


def _above(found: Faithfulness, one: Judged, floor: Judged) -> bool:
    apart = found.difference(one.name, floor.name)
    return apart.sure and apart.mean > 0


def near(estimate: Estimate) -> str:
    """A mean with its interval."""
    ends = (numeral(round(end, 3), 3) for end in (estimate.low, estimate.high))
    return f"{numeral(round(estimate.mean, 3), 3)}, {' to '.join(ends)}"


def lines(found: Faithfulness) -> list[tuple[str, ...]]:
    """One line for each method, the most faithful first."""
    short = [(one.gap, one.positive, one.negative, one.comprehensiveness, one.sufficiency) for one in found.methods]
    return [
        (one.title, near(values[0]), *(numeral(round(v.mean, 3), 3) for v in values[1:]), numeral(one.seconds, 2))
        for one, values in zip(found.methods, short, strict=True)
    ]


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
