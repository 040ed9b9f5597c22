from __future__ import annotations

import numpy as np

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.core.registry import measures
from tests.commands.scan.survey.sample import sample_provenance
from tests.commands.scan.survey.test_diagnose import SAMPLES, only


def survey(*layers):
    book = SurveyBuilder({"inactive_heads": measures()["inactive_heads"].card})
    for layer, ratio in enumerate(layers):
        book.observe("inactive_heads", "value", "decoder", "self", layer, np.array([ratio, ratio]), {}, SAMPLES)
    return book.survey(sample_provenance(len(layers), heads=3, sequences=2))


def test_heads_that_give_little():
    finding = only(survey([1.5, 1.4, 0.1], [1.0, 0.8, 1.2], [0.2, 1.7, 1.1]))
    assert (finding.kind, finding.severity, finding.heads) == ("dormant_heads", "note", ((0, 2), (2, 0)))
    assert finding.sentence == (
        "In 2 of 9 heads (blocks 0, 2) the output is below 25% of the mean of their layer's heads; least in head 2"
        " of block 0: 10%."
    )


def test_silence():
    assert diagnose(survey([1.2, 0.8, 1.0])) == ()
    assert diagnose(survey([1.8, 1.0, 0.2]), Thresholds(inactive_heads=0.1)) == ()
