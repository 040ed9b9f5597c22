from __future__ import annotations

import numpy as np

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.core.registry import measures
from tests.commands.scan.survey.sample import CARDS
from tests.commands.scan.survey.test_diagnose import planted

BOTH = {**CARDS, "value_drain": measures()["value_drain"].card}


def survey(mass, drain):
    book = SurveyBuilder(BOTH)
    planted("most_received", [mass], site="self", where={"key": [0] * len(mass)}, ledger=book)
    book.observe("value_drain", "value", "decoder", "self", 0, np.array([drain, drain]), {}, np.arange(2))
    return planted("entropy", [[2.0] * len(mass)], site="self", ledger=book)


def drained(found):
    return [f for f in found if f.kind == "drained_sinks"]


def test_only_heads_that_rest_are_told_of():
    (finding,) = drained(diagnose(survey([0.8, 0.6, 0.1, 0.9], [0.05, 0.9, 0.01, 0.2])))
    assert (finding.severity, finding.heads, finding.value) == ("note", ((0, 0), (0, 3)), 0.05)
    assert finding.sentence == (
        "2 of 3 heads that rest on one key rest on a small value: its norm is below 30% of the mean of the head, least"
        " in head 0 of block 0: 5%."
    )


def test_silence():
    assert not drained(diagnose(survey([0.8, 0.1], [0.7, 0.01])))
    assert not drained(diagnose(survey([0.8, 0.1], [0.2, 0.01]), Thresholds(value_drain=0.1)))
