"""What a reproduction says, in plain words: the terminal, the page and the notebook print the same ones."""

from __future__ import annotations

import math

from attnscope.core.experiment import Claim, Number, median
from attnscope.core.numerals import numeral
from attnscope.core.words import count
from attnscope.records.reproduction import Reproduction
from attnscope.reporting.verdict import Level, Verdict


def sentences(found: Reproduction) -> tuple[str, ...]:
    """One on all claims together, one on each, and what the experiment remarked."""
    verdicts = ", ".join(f"{number} {verdict}" for verdict, number in found.counts.items() if number)
    return (
        f"Of {count(len(found.claims), 'claim')}: {verdicts}.",
        *(_claim(claim) for claim in found.claims),
        *found.remarks,
    )


def _claim(claim: Claim) -> str:
    measured = "; ".join(measured_words(claim)) or "nothing was measured"
    return f"{claim.verdict.capitalize()}: {claim.statement.rstrip('.')} ({claim.expected}: {measured})."


def measured_words(claim: Claim) -> tuple[str, ...]:
    """One line for every quantity of a claim: `sort accuracy 0.98 (0.97 to 0.99 over 5 seeds)`."""
    return tuple(_spread(name, values) for name, values in claim.measured.items())


def _spread(name: str, values: tuple[Number, ...]) -> str:
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    words = f"{name.replace('_', ' ')} {numeral(median(values))}"
    alike = len(set(numbers)) < 2 and len(numbers) == len(values)
    if alike or not numbers:
        return words
    return f"{words} ({numeral(min(numbers))} to {numeral(max(numbers))} over {len(values)} seeds)"


def run_words(found: Reproduction) -> str:
    """`arXiv:2103.03404, preset quick, 2 seeds, 40 s`."""
    return f"arXiv:{found.paper}, preset {found.preset}, {count(len(found.seeds), 'seed')}, {found.seconds:.0f} s"


def verdict(found: Reproduction) -> Verdict:
    """How many claims hold. That one does not is a result, and no fault."""
    counts = found.counts
    level: Level = "calm" if counts["reproduced"] == len(found.claims) else "info"
    return Verdict("warning" if counts["contradicted"] else level, sentences(found)[0])
