"""The words of an explanation: its sentences, its shaded text, and how terminal, page and notebook show them."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from attnscope.commands.explain.chart import share_rows
from attnscope.commands.explain.conclusions import verdict
from attnscope.commands.explain.measured import as_written
from attnscope.commands.explain.record import Explanation
from attnscope.commands.explain.tried import Replacement
from attnscope.commands.explain.words import MOST_TOKENS, document, tab, token_shades
from attnscope.commands.paths.vocabulary import signed
from attnscope.reports.page import document_page
from attnscope.reports.tabs import ShadedText
from attnscope.reports.terminal import print_record
from tests.reports.sample_explanation import sample_explanation, sample_scene, sample_trial


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
    assert rendered(last).count(' dotted" data-reading') == 1


def test_verdict_names_the_word_that_moved_the_answer_and_says_by_how_much() -> None:
    found = sample_explanation()
    assert verdict(found).sentence == (
        "' France' decided: replaced, ' Paris' falls from 68% to 2% (3 replacements: 1% to 2%). "
        "' capital' did too (from 68% to 40%)."
    )


def test_verdict_names_a_word_that_methods_overrate() -> None:
    found = sample_explanation()
    first = replace(found.method("relevance"), scores=((0.0, 9.0, *(0.0,) * 8),))
    said = verdict(replace(found, methods=(first,))).sentence
    assert said.endswith(" Replacing 'The', ranked first by relevance, changes little (from 68% to 69%).")


def test_word_with_a_small_effect_is_not_in_the_verdict_but_below() -> None:
    found = sample_explanation()
    assert found.trial is not None
    first, second, *others = found.trial.words
    small = replace(second, effect=0.05 * first.effect)
    less = replace(found, trial=replace(found.trial, words=(first, small, *others)))
    assert "capital" not in verdict(less).sentence
    assert "Replacing ' capital' (to 40%) moves the answer too." in less.sentences()


def test_no_word_is_named_if_none_moves_the_answer() -> None:
    found = sample_explanation()
    assert found.trial is not None
    still = replace(found.trial, words=found.trial.words[2:], asking=None)
    said = verdict(replace(found, trial=still)).sentence
    assert said == "No single word decided: of 2 tried, replacing 'The' moves ' Paris' most (from 68% to 69%)."
    asked = verdict(replace(found, trial=replace(still, asking=found.trial.asking))).sentence
    assert asked.endswith("' Rome', after which the answer is read, moves it (from 68% to 10%).")
    pair = replace(found.trial.words[0], word="' a' and ' b'", tokens=(1, 2))
    together = verdict(replace(found, trial=replace(still, pairs=(pair,)))).sentence
    assert "Together, ' a' and ' b' decided: replaced, ' Paris' falls from 68% to 2%" in together


def test_pair_that_takes_no_more_than_one_of_its_words_is_not_named() -> None:
    found = sample_explanation()
    assert found.trial is not None
    weak = tuple(Replacement(f" other{n}", 0.5, 1.0) for n in range(2))
    word = replace(found.trial.words[0], replacements=weak, effect=0.3)
    pair = replace(word, word="' a' and ' b'", tokens=(*word.tokens, 1), replacements=weak)
    trial = replace(found.trial, words=(word,), pairs=(pair,), asking=None)
    assert "Together" not in verdict(replace(found, trial=trial)).sentence
    much = tuple(Replacement(f" other{n}", 0.1, 1.0) for n in range(2))
    trial = replace(trial, pairs=(replace(pair, replacements=much),))
    assert "Together, ' a' and ' b' decided" in verdict(replace(found, trial=trial)).sentence


def test_word_that_is_not_confirmed_is_not_named() -> None:
    found = sample_explanation()
    assert found.trial is not None
    first, *others = found.trial.words
    kept = tuple(Replacement(f" again{n}", 0.67, 1.0) for n in range(2))
    trial = replace(found.trial, words=(replace(first, again=kept), *others), fitted=True)
    assert "France" not in [word.word.strip() for word in trial.named]
    assert "France" in [word.word.strip() for word in found.trial.named]


def test_two_fitting_replacements_that_take_the_answer_away_can_change_it() -> None:
    found = sample_explanation()
    assert found.trial is not None
    first, *others = found.trial.words
    kept = tuple(Replacement(f" kept{n}", 0.67, 1.0, chosen="similar") for n in range(4))
    italy = Replacement(" Italy", 0.03, 0.9, " Rome", 0.6, "likely")
    taking = italy, replace(italy, text=" Peru", answer=0.02, says=" Lima")
    word = replace(first, replacements=(*taking, *kept), again=kept[:2])
    trial = replace(found.trial, words=(word, *others[1:]), fitted=True)
    said = verdict(replace(found, trial=trial)).sentence
    assert said.startswith("No single word decided: ")
    assert (
        "' France' can change it: with ' Peru' the model says ' Lima' (60%), and ' Paris' falls from 68% to 2%." in said
    )
    for one in (replace(italy, fit=0.4), replace(italy, answer=0.35), replace(italy, says="")):
        unsure = replace(trial, words=(replace(word, replacements=(one, taking[1], *kept)), *others[1:]))
        assert "can change it" not in verdict(replace(found, trial=unsure)).sentence
    assert replace(trial, fitted=False).contrast(word) is None
    both = verdict(replace(found, trial=replace(trial, words=(word, *others)))).sentence
    assert both.startswith("' capital' decided: ")
    assert "' France' can change it: " in both


def test_single_replacement_needs_a_control_in_the_place_of_another_word() -> None:
    found = sample_explanation()
    assert found.trial is not None
    first, *_ = found.trial.words
    kept = tuple(Replacement(f" kept{n}", 0.67, 1.0, chosen="similar") for n in range(4))
    italy = Replacement(" Italy", 0.03, 0.9, " Rome", 0.6, "likely")
    word = replace(first, replacements=(italy, *kept), again=kept[:2])
    trial = replace(found.trial, words=(word,), fitted=True)
    assert trial.contrast(word) is None
    assert trial.contrast(replace(word, control=Replacement(" Italy", 0.6, 0.9))) == italy
    causing = Replacement(" Italy", 0.05, 0.9, " Rome", 0.6)  # it takes the answer away wherever it stands
    assert trial.contrast(replace(word, control=causing)) is None
    twice = replace(word, replacements=(italy, replace(italy, text=" Peru"), *kept))
    assert trial.contrast(twice) is not None
    assert trial.contrast(replace(twice, control=causing)) is None


def test_long_text_says_how_few_words_were_tried() -> None:
    found = sample_explanation(tokens=30)
    tried = replace(found, trial=sample_trial(["relevance"]))
    assert verdict(tried).sentence.endswith("Only 4 words of 30 tokens were tried.")


def test_very_small_probabilities_are_compared_with_the_one_before() -> None:
    found = sample_explanation()
    assert found.trial is not None
    first, *others = found.trial.words
    rows = tuple(Replacement(f" other{n}", answer, 1.0) for n, answer in enumerate((1e-6, 2e-6)))
    word = replace(first, replacements=rows, again=rows[1:], effect=3.5)
    trial = replace(found.trial, before=5e-5, words=(word, *others))
    assert verdict(replace(found, trial=trial)).sentence.startswith(
        "' France' decided: replaced, ' Paris' falls from 0.005% to 0.04 times that (3 replacements: 0.02 times that "
        "to 0.04 times that)."
    )


def test_example_of_a_verdict_is_a_similar_word_after_which_the_model_is_sure() -> None:
    found = sample_explanation()
    assert found.trial is not None
    first, *others = found.trial.words
    rows = (
        Replacement(" the", 0.01, 1.0, " not", 0.9, "likely"),
        Replacement(" Spain", 0.01, 0.8, " Madrid", 0.7, "similar"),
        Replacement(" Italy", 0.01, 0.8, " Rome", 0.3, "similar"),
        Replacement(" Zaire", 0.01, 0.01, " Kinshasa", 1.0, "similar"),
    )
    trial = replace(found.trial, words=(replace(first, replacements=rows, again=rows[1:2]), *others))
    assert "; with ' Spain' the model says ' Madrid' (70%)." in verdict(replace(found, trial=trial)).sentence


def test_negative_difference_asks_to_swap_the_sides() -> None:
    found = sample_explanation()
    assert found.trial is not None
    trial = replace(found.trial, unit="number", before=-2.0)
    asked = replace(found.asked, kind="difference", other=" Rome")
    said = verdict(replace(found, asked=asked, trial=trial)).sentence
    assert said.endswith("the model prefers the other one. Swap the target and `against=` to learn what decided.")


def test_no_verdict_without_a_trial() -> None:
    found = replace(sample_explanation(), trial=None)
    assert verdict(found).sentence == "Nothing was tried on the model, so no word is said to have decided."
    assert "decided:" not in " ".join(found.sentences())
    assert document(found).sections[0].tabs[0].title == "Relevance"


def test_methods_are_ordered_by_their_agreement_with_the_trial() -> None:
    titles = [tab.title for tab in document(sample_explanation()).sections[0].tabs]
    assert titles == [
        *("Measured effect", "Attention-aware LRP (0.8)", "Relevance (0.4)", "Occlusion"),
        "Methods that ignore the answer",
    ]


def test_sentences_name_the_target_the_negative_word_and_the_missing_sum() -> None:
    sentences = " ".join(sample_explanation(methods=2).sentences())
    assert "The target is the logit of ' Paris' after the last token: 7.25." in sentences
    either = "it speaks against the answer, or what took its place speaks for it."
    assert f"Replacing ' not' raises ' Paris' from 68% to 90%: {either}" in sentences
    assert "' Rome' asks: the answer is read after it." in sentences
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
    both = replace(found, methods=(right, wrong), trial=None)
    assert both.voting == (right,)
    sentences = " ".join(both.sentences())
    assert (
        f"Scores add up to what they should: relevance {signed(right.total)} of {signed(right.total * 1.04)}."
        in sentences
    )
    assert "By wrong, tokens add up to" in sentences
    assert "off by more than 5%: the method has no say" in sentences
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
    for title in ("Relevance (0.4)", "Attention-aware LRP (0.8)", "Occlusion", "Methods that ignore the answer"):
        assert f">{title}</button>" in page
    assert page == rendered(sample_explanation())
    assert page.count('data-reading="&#39; France') == 6  # five methods and the measured effect


def test_notebook_shows_the_shaded_text_and_escapes_it() -> None:
    shown = sample_explanation()._repr_html_()
    assert 'title="&#x27; France&#x27;: the answer goes to 2%' in shown
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


def test_methods_that_ignore_the_answer_share_one_tab_and_one_ramp_of_colours() -> None:
    found = sample_explanation()
    ignoring = [method.title for method in found.methods if not method.reads_answer]
    last = document(found).sections[0].tabs[-1]
    assert last.title == "Methods that ignore the answer"
    assert [block.label for block in last.blocks] == ignoring
    ramps = {piece.colour[:1] for block in last.blocks if isinstance(block, ShadedText) for piece in block.pieces}
    assert ramps == {"d" if last.diverging else "q"}


def test_table_of_a_trial_quotes_replacements_and_shows_fits_below_one() -> None:
    found = sample_explanation()
    (table,) = document(found).sections[1].tables
    assert "fit" not in table.heading
    assert all(row[2].startswith("'") for row in table.rows)
    assert found.trial is not None
    first, *others = found.trial.words
    rare = replace(first, replacements=tuple(replace(one, fit=0.5) for one in first.every), again=())
    (table,) = document(replace(found, trial=replace(found.trial, words=(rare, *others)))).sections[1].tables
    assert dict(zip(table.heading, table.rows[0], strict=True))["fit"] == "50%"
