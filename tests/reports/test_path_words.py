"""Words and tables of a decomposition show cancellation, constants, other targets and other lengths."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from attnscope.commands.paths.chart import length_chart, wrapped
from attnscope.commands.paths.page import render
from attnscope.commands.paths.record import Chain, Goal, PathReport
from attnscope.commands.paths.vocabulary import probability_words, seen_lengths, target_is, target_word, visible
from attnscope.commands.paths.words import length_lines, sentences
from attnscope.reports.terminal import print_record
from tests.reports.sample_paths import sample_paths


def with_streams(*values: float, constants: float = 0.0, **changes: Any) -> PathReport:
    """Return a report with one length per value, whose total is their sum."""
    report = sample_paths(layers=len(values) - 1)
    rows = [
        replace(row, stream=v, constants=constants, energy=None) for row, v in zip(report.lengths, values, strict=True)
    ]
    whole = sum(values) + constants * len(values)
    return replace(report, lengths=tuple(rows), value=whole, total=whole, **changes)


def printed(report: PathReport, verbose: bool = True) -> str:
    out = StringIO()
    print_record(report, console=Console(file=out, width=80), verbose=verbose)
    assert max(map(len, out.getvalue().splitlines())) <= 80
    return out.getvalue()


def states(report: PathReport) -> PathReport:
    """Return the report of a model without logits: norms over all tokens, no words."""
    nothing: dict[str, Any] = {"predicted": None, "probability": None, "target_probability": None, "loss": None}
    rows = [
        replace(row, up_to=replace(row.up_to, **nothing), without=replace(row.without, **nothing))
        for row in report.lengths
    ]
    return replace(
        report,
        lengths=tuple(rows),
        output="states",
        target="what tells tokens apart",
        goal=Goal("residual_norm"),
    )


def other_target(report: PathReport, chances: list[float]) -> PathReport:
    """Return a report of a target that the model does not predict; its probability by length is `chances`."""
    rows = [
        replace(row, up_to=replace(row.up_to, target_probability=p))
        for row, p in zip(report.lengths, chances, strict=True)
    ]
    goal = Goal("logit", " Paris", where="after the last token")
    return replace(report, lengths=tuple(rows), target="logit of ' Paris' after the last token", goal=goal)


def test_lengths_that_cancel_are_not_shares_of_the_whole() -> None:
    said = sentences(with_streams(-45.7, 47.9, 24.9, -24.4))[1]
    assert "and lengths cancel: their sizes add up to" in said
    assert "add up to 142.9" in said
    assert "one head (+47.9) and through no head (-45.7)" in said
    assert "%" not in said
    # First the negative part (1.9) is less than the rest (2.1), then (2.1) more than the rest (1.9).
    assert "95% of it comes from paths through no head" in sentences(with_streams(2.0, 2.0, -1.9))[1]
    assert "cancel" in sentences(with_streams(2.0, 2.0, -2.1))[1]


@pytest.mark.parametrize(
    ("streams", "words"),
    [
        ((2.0, 6.0), "25% of it comes from paths through no head and 75% through one head."),
        ((0.04, 3.96), "1% of it comes from paths through no head and 99% through one head."),
        ((0.01, 3.99), "more than 99% of it comes from paths through one head."),
        ((5.0, -1.0), "125% of it comes from paths through no head and -25% through one head."),
        ((1.0, 2.0, 3.0, 3.0, 1.0), "20% of it comes from paths through one head, 30% through 2 heads, 30% through 3"
         " heads and 20% from all others."),
        ((0.0, 0.0), "paths of every length give nothing."),
    ],
)  # fmt: skip
def test_shares_of_lengths_are_those_that_were_measured(streams: tuple[float, ...], words: str) -> None:
    assert sentences(with_streams(*streams))[1].endswith(f": {words}")


def test_constants_are_spoken_of_and_shown_where_they_weigh() -> None:
    heavy, light = with_streams(2.0, 1.0, constants=0.5), with_streams(2.0, 1.0, constants=0.01)
    said = " ".join(sentences(heavy))
    assert "constants (biases, shifts of norms) add +1 and paths from the input +3" in said
    assert "sizes" not in said  # which are the same here
    assert "their sizes add up to 1.5 and 5" in " ".join(sentences(with_streams(4.0, -1.0, constants=0.75)))
    assert "constants" in printed(heavy).split("By length")[1]
    assert "constants" not in " ".join(sentences(light))
    assert "constants" not in printed(light).split("By length")[1]
    assert "from constants" in length_lines(light)[0]  # the page has room


@pytest.mark.parametrize(("changed", "words"), [(3, ""), (4, "one other length"), (6, "any one of 3 other lengths")])
def test_lengths_that_are_not_named_are_counted(changed: int, words: str) -> None:
    report = sample_paths()
    rows = [replace(row, without=replace(row.without, predicted=" Rome" if k >= changed else " also"))
            for k, row in enumerate(report.lengths)]  # fmt: skip
    said = next(s for s in sentences(replace(report, lengths=tuple(rows))) if s.startswith("Without paths"))
    assert said.count("the model would say") == 3
    assert ("would also say something else" in said) == bool(words)
    assert words in said


def test_the_probability_of_another_target_is_followed() -> None:
    report = other_target(sample_paths(), [0.01, 0.02, 0.09, 0.08, 0.07, 0.06, 0.05])
    said = " ".join(sentences(report))
    assert "suffice to predict ' Rome' (60%)." in said
    assert "The target, ' Paris', has probability 1% with paths through no head, most with those through " in said
    assert "at most 2 heads (9%), and 5% in the whole model." in said
    table = printed(report).split("By length")[1]
    assert re.search(r"p +p +says", table)
    assert re.search(r"of that +of target", table)
    own = sample_paths()
    assert "The target," not in " ".join(sentences(own))
    assert "of target" not in printed(own)
    heading, *lines = length_lines(own)
    assert "p" not in heading
    at = heading.index("p of target"), heading.index("p of that")
    assert [lines[0][i] for i in at] == ["0.1", "0.5"]


@pytest.mark.parametrize(
    ("target", "goal", "start", "word", "chance"),
    [
        (
            "logit of 'x' after the last token",
            Goal("logit", "x", where="after the last token"),
            "The logit of 'x' after the last token is 3",
            "'x'",
            "of 'x'",
        ),
        (
            "logit of ''' at token 3",
            Goal("logit", "'", where="at token 3"),
            "The logit of ''' at token 3 is 3",
            "'''",
            "of '''",
        ),
        (
            "logit of ' minus that of 'x'' at token 3",
            Goal("logit", " minus that of 'x'", where="at token 3"),  # a word is never read as a difference
            "The logit of ' minus that of 'x'' at token 3 is 3",
            "' minus that of 'x''",
            "of ' minus that of 'x''",
        ),
        (
            "logit of 'pos' minus that of 'neg'",
            Goal("difference", "pos", "neg"),
            "The logit of 'pos' minus that of 'neg' is 3",
            "'pos'",
            "of 'pos', the first of the two",
        ),
        (
            "norm of the last stream",
            Goal("stream_norm"),
            "The norm of the last stream is 3",
            "the target",
            "of the target",
        ),
        (
            "what tells tokens apart",
            Goal("residual_norm"),
            "The norm of the differences between tokens (the last stream minus its mean token) is 3",
            "the target",
            "of the target",
        ),
        # Files from before there were goals: the sentence as a whole.
        (
            "logit of 'pos' minus that of 'neg'",
            None,
            "The target, logit of 'pos' minus that of 'neg', is 3",
            "logit of 'pos' minus that of 'neg'",
            "of logit of 'pos' minus that of 'neg'",
        ),
    ],
)
def test_every_kind_of_target_makes_a_sentence(
    target: str, goal: Goal | None, start: str, word: str, chance: str
) -> None:
    report = with_streams(2.0, 1.0, target=target, goal=goal)
    assert sentences(report)[1].startswith(start)
    assert target_is(report) in sentences(report)[1]
    assert target_word(report) == word
    assert probability_words(report) == f"p(target) is the probability {chance}"


def test_states_have_no_words_no_probability_and_no_marked_token() -> None:
    report = states(sample_paths())
    page = render(report)
    assert 'class="chip asked"' not in page
    assert 'class="chip output"' in page  # where arcs end
    for name in ("says so far", "says without", "p of that", "p of target"):
        assert name not in length_lines(report)[0]
        assert name not in page
    assert "distance is from the model&#39;s own output at token 4" in page
    assert "give the model's state at token 4 within a tenth" in " ".join(sentences(report))


def test_a_class_of_the_whole_text_marks_no_token() -> None:
    target, goal = "logit of 'good' minus that of 'bad'", Goal("difference", "good", "bad")
    report = replace(sample_paths(), output="classes", position=None, target=target, goal=goal)
    page = render(report)
    assert 'class="chip asked"' not in page
    assert 'class="chip asked"' in render(sample_paths())
    assert "contributes most along it to the output." in page
    assert "p(target) is the probability of &#39;good&#39;, the first of the two" in page


def test_only_lengths_that_are_shown_are_spoken_of() -> None:
    """A model of thirty blocks whose long sums do not collapse but are too small to be seen."""
    sample = sample_paths(layers=30)
    report = replace(sample, lengths=tuple(replace(row, residual=0.9) for row in sample.lengths))
    shown = seen_lengths(report)
    assert shown < 30
    (said,) = (s for s in sentences(report) if "Long paths" in s)
    assert f"those through {shown - 1} heads still differ between tokens (relative residual 0.9)" in said
    assert seen_lengths(sample_paths(layers=12)) == 13  # few lengths are all shown


def test_all_paths_that_were_asked_for_are_printed_with_what_their_token_carries() -> None:
    chains = tuple(Chain(1.0 / (n + 1), ((n, 0),), 3, " Italy", 0.5 / (n + 1)) for n in range(25))
    text = printed(replace(sample_paths(), top=chains))
    lines = text.split("Largest single paths")[1].splitlines()
    assert sum("→ output" in line for line in lines) == 25
    assert "token alone" in text
    (first,) = (line.split() for line in lines if "block 0 head 0" in line)
    assert first[:2] == ["+1", "+0.5"]


def test_words_stay_on_one_line() -> None:
    assert visible(" a\n\tb é") == " a\\n\\tb é"
    sample = sample_paths()
    rows = tuple(replace(row, without=replace(row.without, predicted="\r\n")) for row in sample.lengths)
    report = replace(sample, lengths=rows)
    assert length_lines(report)[1][-2] == "'\\r\\n'"
    assert "'\\r\\n'" in " ".join(sentences(report))


def test_an_axis_has_the_whole_name_of_the_target() -> None:
    report = replace(sample_paths(), target="logit of 'Rome' minus that of 'Paris' after the last token of all")
    title = length_chart(report).to_dict()["layer"][0]["encoding"]["x"]["title"]
    assert len(title) == 2
    assert " ".join(title) == report.target
    assert wrapped("logit of ' c' minus that of ' b' after the last token") == [
        "logit of ' c' minus that of",
        "' b' after the last token",
    ]
    assert wrapped("norm of the last stream") == "norm of the last stream"
