"""The words of a collapse: the grades and their limits, the verdict and its level, the screen."""

from __future__ import annotations

import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from attnscope.commands.collapse.grades import (
    COLLAPSED,
    Grade,
    graded,
    share_words,
    variant_sentences,
    verdict,
)
from attnscope.commands.collapse.words import corpus_words, remarks, sentences
from attnscope.reports.terminal import print_record
from tests.reports.sample_collapse import collapse_of, sample_curves


@pytest.mark.parametrize(
    ("mean", "grade"),
    [
        ((1.0, 2.0), Grade.KEEPS),
        ((1.0, 0.5), Grade.KEEPS),
        ((1.0, COLLAPSED), Grade.KEEPS),
        ((1.0, math.nextafter(COLLAPSED, 0)), Grade.COLLAPSES),
        ((1.0, 1e-5, 0.9), Grade.COLLAPSES),  # what grows again is no longer the tokens
        ((1.0, math.nan), Grade.BROKEN),
        ((1.0, 1e-5, math.nan), Grade.COLLAPSES),
        ((math.nan, 0.5), Grade.KEEPS),
        ((0.0, 0.0), Grade.COLLAPSES),
    ],
)
def test_grades(mean: tuple[float, ...], grade: Grade) -> None:
    assert graded(mean) is grade


def ends(**values: float) -> dict[str, tuple[float, ...]]:
    names = {"alone": "san", "mlps": "san+mlp", "skips": "san+skip", "whole": "whole"}
    return {names[name]: (1.0, value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("left", "level", "words"),
    [
        (
            ends(alone=1e-6, mlps=1e-6, skips=0.5, whole=0.504),
            "note",
            "The whole model keeps 50% of what tells its tokens apart after 1 block; attention alone would collapse, "
            "and skips save it from that.",
        ),
        (
            ends(alone=0.2, mlps=0.3, skips=0.25, whole=0.95),
            "note",
            "keeps 95% of what tells its tokens apart after 1 block; attention alone would keep 20%, with skips 25%, "
            "with MLPs 30%.",
        ),
        (
            ends(alone=0.4, mlps=1e-5, skips=1.5, whole=0.95),
            "note",
            "with skips all, with MLPs nothing (it",
        ),
        (
            ends(alone=1e-6, mlps=0.5, skips=1.0, whole=0.95),
            "note",
            "skips or MLPs, either of them, save it from",
        ),
        (ends(alone=1e-6, mlps=0.5, skips=1e-6, whole=0.95), "note", "would collapse, and MLPs save it from that."),
        (ends(alone=1e-6, mlps=1e-6, skips=1e-6, whole=0.95), "note", "and it takes skips and MLPs together to save"),
        (ends(alone=0.002, whole=0.33), "note", "keeps 33% of what tells its tokens apart after 1 block; attention"),
        (ends(alone=0.002, whole=0.33), "note", "; attention alone would keep less than 1%."),
        (ends(alone=1e-6, skips=0.95, whole=1e-5), "critical", "; attention alone would collapse too."),
        (
            ends(whole=2.0),
            "note",
            "The whole model keeps all of what tells its tokens apart after 1 block (the residual grows from 1 to 2).",
        ),
        (ends(alone=1e-6, whole=0.004), "note", "keeps less than 1% of what tells its tokens apart after 1 block;"),
        (
            ends(alone=1e-6, mlps=1e-6, skips=1e-5, whole=1e-4),
            "critical",
            "The whole model collapses: the residual is 1e-4 after block 0, and neither skips nor MLPs save it.",
        ),
        (ends(alone=0.5, whole=1e-4), "critical", "; attention alone would keep 50%."),
        (ends(alone=math.nan, whole=0.9), "note", "; attention alone would give no finite number."),
        (ends(whole=math.nan, alone=0.5), "critical", "The whole model gives no finite number after block 0"),
        (ends(alone=1e-6), "note", "Attention alone collapses: the residual is 1e-6 after block 0."),
    ],
)
def test_the_verdict_speaks_of_the_whole_model_and_of_what_saves_it(
    left: dict[str, tuple[float, ...]], level: str, words: str
) -> None:
    told = verdict(collapse_of(left))
    assert words in told.sentence
    assert told.level == level
    assert told.sentence.endswith(".")
    assert ". " not in told.sentence  # one sentence


def test_sentences_name_the_blocks() -> None:
    found = collapse_of({"san": (0.9, 0.1, 1e-4, 1e-6), "whole": (0.9, 0.8, 0.7, 0.65)})
    assert sentences(found) == (
        "Attention alone collapses: the residual is 1e-4 after block 1, 1e-6 after block 2.",
        "The whole model keeps 72% of what tells its tokens apart: 0.65 of 0.9 is left after block 2.",
        "One block of attention alone maps a small diameter d of its tokens to about d^3.02 (fitted over 9 points of "
        "single blocks; the theory says 3).",
    )
    assert variant_sentences(found, short=True)[1] == "The whole model keeps 72%: 0.65 of 0.9 is left after block 2."
    grown = collapse_of({"whole": (0.5, 0.75)})
    assert variant_sentences(grown)[0].endswith("apart: 0.75 after block 0, 0.5 entering block 0.")
    rounded = collapse_of({"san": (0.9, 1e-3, 1e-17)})
    assert variant_sentences(rounded)[0] == (
        "Attention alone collapses: after block 1 only rounding is left (below 1e-14)."
    )
    broken = collapse_of({"whole": (0.9, 0.8, math.nan)})
    assert variant_sentences(broken)[0] == (
        "The whole model gives no finite number after block 1: the residual was 0.8 entering block 1."
    )
    assert variant_sentences(collapse_of({"whole": (math.nan, math.nan)})) == (
        "The whole model gives no finite number.",
    )


def test_shares_that_round_to_nothing_are_said_so() -> None:
    shares = (1.2, 1.0, 0.9999, 0.504, 0.01, 0.0099)
    assert [share_words(share) for share in shares] == ["all", "all", "99%", "50%", "1%", "less than 1%"]


@given(before=st.floats(0.01, 2.0), after=st.floats(0.0011, 2.0))
def test_words_and_numbers_agree(before: float, after: float) -> None:
    """The share in a sentence is that of the two residuals, and more left is never called less."""
    (said,) = variant_sentences(collapse_of({"whole": (before, after)}))
    share = after / before
    words = said.partition(" keeps ")[2].partition(" of what")[0]
    if words == "all":
        assert share >= 1
    elif words == "less than 1%":
        assert share < 0.01
    else:
        assert abs(float(words.rstrip("%")) / 100 - share) <= 0.01


def test_an_unknown_start_gives_no_share() -> None:
    (said,) = variant_sentences(collapse_of({"whole": (math.nan, 0.5)}))
    assert said == "The whole model does not collapse: the residual is 0.5 after block 0."


def test_notes_on_bounds_are_no_remarks_and_the_papers_norm_goes_without_saying() -> None:
    found = collapse_of(sample_curves())
    assert remarks(found) == ("Only the decoder is measured here.",)
    assert corpus_words(found) == "a text, 8 sequences of up to 64 tokens"
    assert corpus_words(replace(found, norm="frobenius")).endswith(", frobenius norm")


def screen(**options: Any) -> list[str]:
    written = StringIO()
    print_record(
        collapse_of(sample_curves(), bounds=True),
        files={"Page": Path("out/collapse.html")},
        console=Console(width=80, file=written),
        **options,
    )
    return written.getvalue().splitlines()


def test_the_screen_is_short_and_tables_come_on_request() -> None:
    calm, published, wordy = screen(), screen(published="BERT"), screen(verbose=True)
    assert len(calm) <= len(published) <= 30
    assert max(map(len, calm)) <= 80
    assert sum(line.startswith("· ") for line in calm) == 4
    assert not any("bound" in line for line in calm)
    assert any("out/collapse.html" in line for line in calm)
    text = " ".join(" ".join(wordy).split())
    assert "bound from" in text
    assert "Relative residual" in text
    assert "With its skip and the patterns seen here, attention cannot collapse the stream in 12 of 12" in text
