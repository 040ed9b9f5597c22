"""What an explanation says: in sentences, on a terminal with and without colour, and on its page."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from attnscope.commands.explain.chart import MOST_TOKENS, share_rows
from attnscope.commands.explain.page import render
from attnscope.commands.explain.record import Explanation
from attnscope.commands.explain.shading import as_written, shaded
from attnscope.commands.explain.words import sentences, verdict
from attnscope.reports.terminal import print_record
from tests.reports.sample_explanation import sample_explanation, sample_scene


def only(found: Explanation, *names: str) -> Explanation:
    return replace(found, methods=tuple(found.method(name) for name in names))


def test_tokens_of_the_continuation_are_told_from_those_that_were_given() -> None:
    found = sample_scene()
    assert found.continued_at == 2  # of three tokens read, where two followed: the last is not read
    text = shaded(found, found.method("relevance"))[-1].tokens
    assert [token.followed for token in text] == [False, False, True]
    assert text[2].reading.endswith("of the continuation itself")
    alone = replace(
        found,
        inputs=found.inputs[2:],
        methods=tuple(replace(one, scores=one.scores[2:]) for one in found.methods[1:]),
        steps=tuple(replace(one, scores=(one.scores[0][2:],)) for one in found.steps),
    )
    last = replace(alone, methods=(replace(alone.methods[0], scores=((0.0, 1.0, 2.0),)),))
    assert verdict(last).sentence == "' <b>' (token 2, of the continuation) did most for the answer, by relevance."
    assert render(last).count(' followed" data-reading') == 1


def test_the_verdict_names_what_most_methods_put_first() -> None:
    found = sample_explanation()
    assert verdict(found).sentence == "' France' (token 4) decided: 3 of 4 methods put it first."
    agreed = only(found, "relevance", "occlusion")
    assert verdict(agreed).sentence == "' France' (token 4) decided: all 2 methods put it first."
    apart = verdict(only(found, "relevance", "rollout"))
    assert apart.level == "warning"
    assert "do not agree" in apart.sentence
    assert verdict(only(found, "occlusion")).sentence == "' France' (token 4) did most for the answer, by occlusion."


def test_ties_and_floors_decide_nothing() -> None:
    found = sample_explanation()
    flat = replace(found.method("relevance"), scores=((1.0,) * 10,))
    assert "No token stands out" in verdict(replace(found, methods=(flat,))).sentence
    assert "No token stands out" in verdict(only(found, "random")).sentence


def test_sentences_say_what_speaks_against_and_what_is_missing() -> None:
    said = " ".join(sentences(sample_explanation(methods=2)))
    assert "The target is the logit of ' Paris' after the last token: 7.25." in said
    assert "' not' (token 6) speaks most against it, by 1 of 1 method that can say so." in said
    assert "of 7.25 (the answer, less what constants take)" in said
    assert "rank correlation" in said


def test_shades_run_to_both_sides_only_where_something_speaks_against() -> None:
    found = sample_explanation()
    (read,) = shaded(found, found.method("attention_lrp"))
    assert {token.colour[0] for token in read.tokens} == {"d"}
    assert (read.tokens[4].colour, read.tokens[6].step < 12) == ("d24", True)
    (plain,) = shaded(found, found.method("relevance"))
    assert {token.colour[0] for token in plain.tokens} == {"q"}
    assert plain.tokens[4].colour == "q24"
    assert plain.tokens[4].reading == "' France' (token 4): +1, 100% of the largest, number 1 of 10"
    assert [token.asked for token in plain.tokens] == [False] * 9 + [True]


def test_tokens_read_like_the_text_whatever_the_vocabulary() -> None:
    assert "".join(as_written(("[CLS]", "look", "##ing", "up", "[SEP]"))) == "[CLS] looking up [SEP]"
    spaced = ("<bos>", "The", " cat", "\n")
    assert as_written(spaced) == spaced
    assert as_written(("##a",)) == ("##a",)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("stacks", [1, 2])
def test_the_terminal_keeps_to_its_width(verbose: bool, stacks: int) -> None:
    file = StringIO()
    print_record(sample_explanation(stacks=stacks), console=Console(width=80, file=file), verbose=verbose)
    shown = file.getvalue()
    assert max(map(len, shown.splitlines())) <= 80
    assert "France" in shown
    assert "The 10 tokens that did most" in shown
    assert ("Random" in shown) == verbose
    assert "\x1b" not in shown


def test_colours_are_there_where_a_terminal_has_them() -> None:
    file = StringIO()
    console = Console(width=80, file=file, force_terminal=True, color_system="truecolor")
    print_record(sample_explanation(), console=console)
    assert "\x1b[38;2;" in file.getvalue()


def test_the_page_escapes_tokens_and_has_every_method() -> None:
    page = render(sample_explanation())
    assert "<b> " not in page.split("<main")[1].split("often")[0]
    assert "&lt;b&gt;" in page
    for title in ("Relevance", "Attention-aware LRP", "Attention rollout", "Occlusion", "Random"):
        assert f'data-method="{title.lower()}"' in page or title in page
    assert page == render(sample_explanation())
    assert page.count('data-reading="&#39; France') == 5


def test_of_many_tokens_those_that_did_most_are_drawn_in_the_order_of_reading() -> None:
    rows = share_rows(sample_explanation(tokens=200))
    tokens = list(dict.fromkeys(row["token"] for row in rows))
    assert len(tokens) == MOST_TOKENS
    places = [int(token.split()[0]) for token in tokens]
    assert places == sorted(places)
    assert 4 in places
