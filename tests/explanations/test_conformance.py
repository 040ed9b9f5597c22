"""Every registered explanation has a full card and one score per token, ignores later tokens, and is deterministic."""

import math
from functools import cache

import pytest

import attnscope
from attnscope.commands.explain.record import Explanation
from attnscope.core.explanation import READABLE, explanation
from attnscope.core.registry import METHOD_SETS, chosen_methods, explanations
from tests.specimens import byte_tokenizer, tiny_llama, tiny_t5

METHODS = tuple(explanations())
TEXT = "which one?"


@cache
def explained(position: int | None = None, times: int = 1) -> Explanation:
    """Return all methods at once. Another value of `times` runs them again."""
    return attnscope.explain(tiny_llama(), TEXT, methods="all", position=position, tokenizer=byte_tokenizer())


@cache
def of_two_stacks() -> Explanation:
    return attnscope.explain(tiny_t5(), ("a source", "a target"), methods="all", tokenizer=byte_tokenizer())


@pytest.mark.parametrize("name", METHODS)
def test_card_is_complete(name: str) -> None:
    method = explanations()[name]
    card = method.card
    assert card.name == name
    assert card.group in METHOD_SETS
    for words in (card.title, card.summary, card.citation, card.formula, card.cost):
        assert words.strip()
    assert card.summary.endswith(".")
    assert "arXiv:" in card.citation
    assert set(method.reads) <= set(READABLE)
    assert card.to_json()["name"] == name


@pytest.mark.parametrize("name", METHODS)
def test_scores_are_finite_and_deterministic(name: str) -> None:
    found = explained()
    (numbers,) = found.method(name).scores
    assert len(numbers) == len(found.inputs[0].tokens) == 1 + len(TEXT)
    assert all(math.isfinite(number) for number in numbers)
    assert max(numbers) > min(numbers)
    if not explanations()[name].card.signed:
        assert min(numbers) >= 0
    assert explained(times=2).method(name) == found.method(name)


@pytest.mark.parametrize("name", [name for name in METHODS if explanations()[name].card.group != "floor"])
def test_later_tokens_have_score_zero(name: str) -> None:
    """At token 5 a causal model has not read token 6, so its score must be 0.

    Value zeroing compares runs of one and of several sequences, which differ by rounding, and squares the difference.
    """
    (numbers,) = explained(position=5).method(name).scores
    assert numbers[6:] == pytest.approx([0.0] * (len(numbers) - 6), abs=1e-10)
    assert max(map(abs, numbers[:6])) > 1e-4


@pytest.mark.parametrize("name", METHODS)
def test_two_stacks_are_scored_or_a_note_says_why_not(name: str) -> None:
    card, found = explanations()[name].card, of_two_stacks()
    assert [one.name for one in found.inputs] == ["encoder", "decoder"]
    if card.stacks == "one":
        assert name not in found.names
        assert any(note.startswith(f"{card.title} is left out: {name} follows one stack") for note in found.notes)
    else:
        assert [len(row) for row in found.method(name).scores] == [len(one.tokens) for one in found.inputs]


def test_sets_of_methods_follow_the_cards() -> None:
    groups = {name: method.card.group for name, method in explanations().items()}
    for word in ("default", "slow", "floor"):
        assert {one.card.name for one in chosen_methods([word])} == {n for n, group in groups.items() if group == word}
    assert {one.card.name for one in chosen_methods(["all"])} == set(groups)
    assert chosen_methods(["default"])[0].card.name == "relevance"


def test_unknown_field_is_refused_at_registration() -> None:
    register = explanation(title="t", summary="s", citation="c", formula="f", cost="c", signed=False)
    with pytest.raises(TypeError, match="asks for nonsense"):

        @register
        def wrong(nonsense: int) -> None: ...
