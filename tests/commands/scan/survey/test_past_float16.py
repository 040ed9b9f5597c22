"""An activation above the largest float16 number is reported however it grew; one equal to it is not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding
from attnscope.findings.past_float16 import FLOAT16
from tests.commands.scan.survey.sample import CARDS, sample_provenance

LARGEST = float(np.finfo(np.float16).max)


def climbing(sizes: Sequence[Sequence[float]], *, middle: bool = False) -> Survey:
    """Return a survey of these largest entries: a row for each place and a column for each sequence."""
    book = SurveyBuilder(CARDS)
    for place, row in enumerate(sizes):
        site, layer = ("stream", "middle")[place % 2 if middle else 0], place // 2 if middle else place
        labels = {"channel": np.full(len(row), 443), "token": np.full(len(row), 3)}
        book.observe("spike", "value", "decoder", site, layer, np.array(row, dtype=float), labels, np.arange(len(row)))
    return book.survey(sample_provenance(len(sizes)))


def past(survey: Survey) -> list[Finding]:
    return [finding for finding in diagnose(survey) if finding.kind == "past_float16"]


def test_the_limit_is_that_of_the_format() -> None:
    assert LARGEST == FLOAT16


@pytest.mark.parametrize(
    ("level", "speaks"), [(LARGEST, False), (np.nextafter(LARGEST, np.inf), True), (65503.0, False), (101_716.0, True)]
)
def test_the_boundary(level: float, speaks: bool) -> None:
    assert bool(past(climbing([[60_000.0] * 2, [level] * 2]))) == speaks


def test_a_climb_in_small_steps_is_no_step_and_still_found() -> None:
    survey = climbing([[size] * 2 for size in (30_000, 42_000, 60_000, 80_000, 101_716, 90_000)])
    (finding,) = diagnose(survey)
    assert (finding.kind, finding.severity) == ("past_float16", "to_know")
    assert finding.sentence == (
        "Float16 would overflow: the largest entry of the residual stream is 101,716 after block 3 (channel 443, "
        "token 3), and the largest float16 number is 65,504; it exceeds that from block 2 on."
    )
    assert finding.layers == (2, 3)
    assert (finding.details["block"], finding.details["channel"], finding.value) == (3, 443, 101_716)


def test_one_sequence_is_enough() -> None:
    (finding,) = past(climbing([[100.0] * 3, [100.0, 70_000.0, 200.0]]))
    assert (finding.value, finding.details["sample"]) == (70_000, 1)


def test_halves_of_blocks_are_named() -> None:
    (finding,) = past(climbing([[50_000.0], [52_000.0], [70_000.0], [71_000.0], [68_000.0]], middle=True))
    assert "71,000 after the attention of block 1 " in finding.sentence
    assert finding.sentence.endswith("it exceeds that from block 0 on.")


def test_an_embedding_that_is_too_large() -> None:
    (finding,) = past(climbing([[90_000.0], [80_000.0]]))
    assert "90,000 entering block 0 " in finding.sentence
    assert finding.layers == (0,)


def test_a_step_past_the_limit_is_both() -> None:
    kinds = [finding.kind for finding in diagnose(climbing([[20.0] * 2, [80_000.0] * 2]))]
    assert kinds == ["massive_activation", "past_float16"]
