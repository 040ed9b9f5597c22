from __future__ import annotations

import numpy as np
import pytest

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.readings import Uniform
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.registry import measures
from tests.commands.scan.survey.sample import sample_provenance
from tests.commands.scan.survey.test_diagnose import SAMPLES

LARGEST = Uniform(64.0, True).entropy


def survey(ratio: float, predicted: float, measured: float, weights: str = "random") -> Survey:
    """Return a survey of two heads of one block over 64 tokens, with entropies as shares of the largest."""
    book = SurveyBuilder({name: measures()[name].card for name in ("logit_phase", "entropy")})
    parts = {"value": ratio, "predicted_entropy": predicted * LARGEST, "predicted_squares": 0.6, "squares": 0.64}
    for part, value in parts.items():
        book.observe("logit_phase", part, "decoder", "self", 0, np.full((2, 2), value), {}, SAMPLES)
    book.observe("entropy", "value", "decoder", "self", 0, np.full((2, 2), measured * LARGEST), {}, SAMPLES)
    origin = sample_provenance(1, heads=2, sequences=2)
    return book.survey({**origin, "model": {**origin["model"], "weights": weights}})


def told(*given, thresholds: Thresholds | None = None, **more):
    return [f for f in diagnose(survey(*given, **more), thresholds) if f.kind == "initial_phase"]


@pytest.mark.parametrize(
    ("given", "phase", "severity"),
    [
        ((0.02, 0.999, 0.998), "uniform", "note"),
        ((0.5, 0.75, 0.76), "healthy", "note"),
        ((2.5, 0.0, 0.2), "frozen", "to_know"),
    ],
)
def test_each_phase(given, phase, severity):
    (finding,) = told(*given)
    assert (finding.details["phase"], finding.severity) == (phase, severity)
    assert f"attention starts {phase}" in finding.sentence
    assert finding.details["measured_entropy_share"] == pytest.approx(given[2])
    assert ("0.6 predicted, 0.64 measured" in finding.sentence) == (phase == "frozen")


def test_the_sentence_and_the_thresholds():
    (finding,) = told(0.5, 0.75, 0.76)
    assert finding.sentence == (
        "At this width and depth attention starts healthy: the spread of logits is 50% of what freezes a row, which"
        " predicts 75% of the largest entropy; measured: 76%."
    )
    (other,) = told(0.5, 0.75, 0.76, thresholds=Thresholds(uniform_entropy=0.7))
    assert (other.details["phase"], other.threshold_name) == ("uniform", "uniform_entropy")


def test_trained_weights_have_no_initial_phase():
    assert not told(0.5, 0.75, 0.76, weights="safetensors")
