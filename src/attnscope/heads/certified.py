"""From what a construction found to a head that is certified: the one place where factors are rounded and judged."""

from __future__ import annotations

from typing import NamedTuple

from attnscope.heads.accuracy import Accuracy
from attnscope.heads.certificate import certify
from attnscope.heads.factors import Factors
from attnscope.heads.head import Head
from attnscope.heads.rounding import rounded
from attnscope.patterns.pattern import Pattern
from attnscope.records.certificate import Certificate


class Certified(NamedTuple):
    """A head in the precision it runs in, and how well its rounded tensors realise the pattern."""

    head: Head
    certificate: Certificate


def certified(factors: Factors, pattern: Pattern, accuracy: Accuracy, method: str) -> Certified:
    """Round to the precision of the accuracy, then certify what is left after rounding."""
    head = rounded(factors, pattern, accuracy.dtype, method)
    return Certified(head, certify(head, pattern, accuracy))
