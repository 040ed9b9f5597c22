"""The words of an explanation: its sentences, its shaded text, and how terminal, page and notebook show them."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from attnscope.commands.explain.chart import share_rows
from attnscope.commands.explain.conclusions import verdict
from attnscope.commands.explain.record import Explanation
from attnscope.commands.explain.words import MOST_TOKENS, as_written, document, tab, token_shades
from attnscope.commands.paths.vocabulary import signed
from attnscope.reports.page import document_page
from attnscope.reports.terminal import print_record
from tests.reports.sample_explanation import sample_explanation, sample_scene


def only(found: Explanation, *names: str) -> Explanation:
    return replace(found, methods=tuple(found.method(name) for name in names))


def rendered(found: Explanation) -> str:
    return document_page(document(found), "explain")


def test_tokens_of_the_continuation_are_marked() -> None:
    found = sample_scene()
    assert found.continued_at == 2  # two tokens followed; the last of them was not read
    *shades, predicted = token_shades(found, found.method("relevance"), found.inputs[-1])
    assert [shade.mark for shade in shades] == ["", "", "dotted"]
    assert shades[2].reading.endswith("in the continuation")
    assert (predicted.text, predicted.colour, predicted.mark) == (" two", "", "dim")
    text_only = replace(
        found,
        inputs=found.inputs[2:],
        methods=tuple(replace(method, scores=method.scores[2:]) for method in found.methods[1:]),
        steps=tuple(replace(step, scores=(step.scores[0][2:],)) for step in found.steps),
    )
    last = replace(text_only, methods=(replace(text_only.methods[0], scores=((0.0, 1.0, 2.0),)),))
    assert verdict(last).sentence == "' <b>' (token 2, of the continuation) did most for the answer, by relevance."
    assert rendered(last).count(' dotted" data-reading') == 1


def test_verdict_names_the_token_that_most_methods_put_first() -> None:
    found = sample_explanation()
    assert verdict(found).sentence == "' France' (token 4) decided: 3 of 4 methods put it first."
    agreed = only(found, "relevance", "occlusion")
    assert verdict(agreed).sentence == "' France' (token 4) decided: all 2 methods put it first."
    disagreed = verdict(only(found, "relevance", "rollout"))
    assert disagreed.level == "warning"
    assert "do not agree" in disagreed.sentence
    assert verdict(only(found, "occlusion")).sentence == "' France' (token 4) did most for the answer, by occlusion."


def test_equal_scores_and_random_scores_decide_nothing() -> None:
    found = sample_explanation()
    flat = replace(found.method("relevance"), scores=((1.0,) * 10,))
    assert "No token stands out" in verdict(replace(found, methods=(flat,))).sentence
    assert "No token stands out" in verdict(only(found, "random")).sentence


def test_sentences_name_the_target_the_negative_token_and_the_missing_sum() -> None:
    sentences = " ".join(sample_explanation(methods=2).sentences())
    assert "The target is the logit of ' Paris' after the last token: 7.25." in sentences
    assert "' not' (token 6) speaks most against the answer, by 1 of 1 method with negative scores." in sentences
    assert "of 7.25 (the answer, less what constants take)" in sentences
    assert "rank correlation" in sentences


def test_a_method_that_fails_its_own_check_has_no_say() -> None:
    """A sum may be off by 5% of what it should be."""
    found = sample_explanation()
    own = found.method("relevance")
    right = replace(own, sums_to=own.total * 1.04)
    wrong = replace(own, name="wrong", title="Wrong", sums_to=-own.total)
    assert (own.passes, right.passes, wrong.passes) == (None, True, False)
    assert replace(own, scores=((0.0, 0.0),), sums_to=0.0).passes
    both = replace(found, methods=(right, wrong))
    assert both.voting == (right,)
    sentences = " ".join(both.sentences())
    assert (
        f"Scores add up to what they should: relevance {signed(right.total)} of {signed(right.total * 1.04)}."
        in sentences
    )
    assert "By wrong, tokens add up to" in sentences
    assert "off by more than 5%: the method has no say" in sentences
    alone = verdict(replace(found, methods=(wrong,)))
    assert (alone.level, "add up to what they should" in alone.sentence) == ("warning", True)
    assert Explanation.from_json(json.loads(json.dumps(both.to_json()))) == both


def test_colours_diverge_only_if_a_score_is_negative() -> None:
    found = sample_explanation()
    signed = token_shades(found, found.method("attention_lrp"), found.inputs[0])
    unsigned = token_shades(found, found.method("relevance"), found.inputs[0])
    assert {shade.colour[0] for shade in signed} == {"d"}
    assert signed[4].colour == "d24"
    assert int(signed[6].colour[1:]) < 12
    assert {shade.colour[0] for shade in unsigned} == {"q"}
    assert unsigned[4].colour == "q24"
    assert unsigned[4].reading == "' France' (token 4): +1, 100% of the largest, number 1 of 10"
    assert [shade.mark for shade in unsigned] == [""] * 9 + ["underlined"]


def test_tab_names_the_ends_of_its_colours() -> None:
    found = sample_explanation()
    assert tab(found, found.method("relevance")).ends == ("0", "1")
    assert tab(found, found.method("attention_lrp")).ends == ("−2 against", "+2 for")


def test_tokens_read_like_the_text_for_every_vocabulary() -> None:
    assert "".join(as_written(("[CLS]", "look", "##ing", "up", "[SEP]"))) == "[CLS] looking up [SEP]"
    spaced = ("<bos>", "The", " cat", "\n")
    assert as_written(spaced) == spaced
    assert as_written(("##a",)) == ("##a",)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("stacks", [1, 2])
def test_terminal_is_at_most_80_columns_wide(verbose: bool, stacks: int) -> None:
    file = StringIO()
    print_record(sample_explanation(stacks=stacks), console=Console(width=80, file=file), verbose=verbose)
    shown = file.getvalue()
    assert max(map(len, shown.splitlines())) <= 80
    assert "France" in shown
    assert "The 10 tokens that did most" in shown
    assert ("Random" in shown) == verbose
    assert "\x1b" not in shown


def test_terminal_with_colours_shows_colours() -> None:
    file = StringIO()
    console = Console(width=80, file=file, force_terminal=True, color_system="truecolor")
    print_record(sample_explanation(), console=console)
    assert "\x1b[38;2;" in file.getvalue()


def test_page_escapes_tokens_and_has_every_method() -> None:
    page = rendered(sample_explanation())
    assert "<b>" not in page.split("<main")[1]
    assert "&lt;b&gt;" in page
    for title in ("Relevance", "Attention-aware LRP", "Attention rollout", "Occlusion", "Random"):
        assert f">{title}</button>" in page
    assert page == rendered(sample_explanation())
    assert page.count('data-reading="&#39; France') == 5


def test_notebook_shows_the_shaded_text_and_escapes_it() -> None:
    shown = sample_explanation()._repr_html_()
    assert 'title="&#x27; France&#x27; (token 4): +1' in shown
    assert "background: #" in shown
    assert "<b> </b>" not in shown
    assert "&lt;b&gt;" in shown


def test_map_of_many_tokens_keeps_those_that_did_most_in_reading_order() -> None:
    rows = share_rows(sample_explanation(tokens=200))
    tokens = list(dict.fromkeys(row["token"] for row in rows))
    assert len(tokens) == MOST_TOKENS
    places = [int(token.split()[0]) for token in tokens]
    assert places == sorted(places)
    assert 4 in places
