from __future__ import annotations

import numpy as np

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.core.registry import measures
from tests.commands.scan.survey.sample import sample_provenance
from tests.commands.scan.survey.test_diagnose import SAMPLES, only

CARDS = {"max_logit": measures()["max_logit"].card}


def survey(*layers):
    """Two sequences; of each block its heads' largest logits in the one and in the other."""
    book = SurveyBuilder(CARDS)
    for layer, values in enumerate(layers):
        found = np.array(values, dtype=np.float64)
        book.observe("max_logit", "value", "decoder", "self", layer, found, {"token": np.full(found.shape, 5)}, SAMPLES)
    return book.survey(sample_provenance(len(layers), heads=2, sequences=2))


def test_one_sequence_is_enough():
    finding = only(survey([[12.0, 20.0], [11.0, 19.0]], [[30.0, 40.0], [30.0, 140.0]]))
    assert (finding.kind, finding.severity, finding.heads, finding.value) == ("large_logits", "warning", ((1, 1),), 140)
    assert finding.sentence == ("In 1 of 4 heads (block 1) logits pass 100; the largest is 140, in head 1 of block 1.")
    assert (finding.details["sample"], finding.details["token"]) == (1, 5)


def test_silence_and_the_threshold():
    quiet = survey([[12.0, 20.0], [11.0, -19.0]])
    assert diagnose(quiet) == ()
    assert only(quiet, Thresholds(max_logit=15.0)).heads == ((0, 1),)
