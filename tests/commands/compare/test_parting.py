"""Where two models part: the first place that differs, named in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.commands.compare.parting import Parting, parting, times
from attnscope.commands.compare.places import paired
from attnscope.commands.compare.record import compare
from attnscope.commands.scan.survey.survey import Survey
from tests.commands.compare.made import BLOCKS, after, exposed, made, with_trial


def parted(first: Survey, other: Survey) -> Parting:
    found = compare(first, other).parting
    assert found is not None
    return found


def test_equal_surveys_do_not_part() -> None:
    found = parted(made(), made())
    assert (found.kind, found.layer, found.sentence) == ("same", None, "Every number is the same.")


def test_rounding_is_no_difference() -> None:
    near = made({("spike", layer): 1 + 2e-6 for layer in range(BLOCKS + 1)})
    assert parted(made(), near).sentence == "No number differs by more than rounding."
    coarse = made({("spike", layer): 1.02 for layer in range(BLOCKS + 1)}, dtype="bfloat16")
    assert parted(made(), coarse).kind == "same"
    assert parted(made(), replace(coarse, provenance=made().provenance)).kind == "start"


def test_a_larger_write_of_an_mlp_is_named() -> None:
    first = with_trial(made())
    second = with_trial(made(after(2)), writes={(2, "mlp"): 24.0, (3, "attention"): 0.1})
    found = parted(first, second)
    assert (found.kind, found.stack, found.layer, found.half, found.head) == ("place", "decoder", 2, "mlp", None)
    assert found.sentence == "Identical up to block 1; the MLP of block 2 writes 80x larger."


def test_without_a_trial_the_largest_change_is_named() -> None:
    found = parted(made(), made(after(2)))
    assert (found.layer, found.half) == (2, "mlp")
    assert found.sentence.startswith("Identical up to block 1; the MLP of block 2 writes something else: largest act")


def test_the_only_head_that_attends_elsewhere_is_named() -> None:
    changed = after(1) | {("entropy", 1): 1.7}
    found = parted(made(), made({**changed, ("head_overlap", 1): 0.9}, head=1))
    assert (found.layer, found.half, found.head) == (1, "attention", 1)
    assert found.sentence.startswith(
        "Identical up to block 0; head 1 of block 1 attends elsewhere: attention entropy 1"
    )
    several = parted(made(), made(changed))
    assert (several.layer, several.half, several.head) == (1, "attention", None)
    assert "heads 0-2 of block 1 attend elsewhere, most head " in several.sentence


def test_attention_that_writes_otherwise_and_attends_as_before() -> None:
    first, second = with_trial(made()), made(after(1) | {("middle", 1): 2.0})
    found = parted(first, with_trial(second, writes={(1, "attention"): 0.1}))
    assert (found.layer, found.half) == (1, "attention")
    assert found.sentence == "Identical up to block 0; the attention of block 1 writes 3x smaller."


def test_later_tokens_that_are_seen_are_named() -> None:
    changed = made(after(0) | {("entropy", 0): 1.3})
    found = parted(with_trial(made()), with_trial(changed, exposures=exposed()))
    assert (found.layer, found.half) == (0, "attention")
    assert found.sentence == "Identical where the stream enters block 0; the attention of block 0 sees later tokens."
    back = parted(with_trial(changed, exposures=exposed()), with_trial(made()))
    assert "the attention of block 0 no longer sees later tokens" in back.sentence
    stacks = [{**stack, "causal": False} for stack in made().provenance["model"]["stacks"]]
    unmasked = replace(
        changed, provenance={**changed.provenance, "model": {**changed.provenance["model"], "stacks": stacks}}
    )
    assert "sees later tokens" in parted(made(), unmasked).sentence


def test_a_difference_after_the_last_block() -> None:
    first, second = with_trial(made()), with_trial(made(), loss=(6.5, 6.6, 6.7, 6.4, 6.6, 6.5, 6.8, 6.6))
    found = parted(first, second)
    assert (found.kind, found.half, found.layer) == ("place", "output", None)
    assert found.sentence.startswith("Identical in every block; the difference is after the last one")


def test_models_that_differ_from_the_start_get_a_hint() -> None:
    everywhere = {("spike", layer): 1.01 for layer in range(BLOCKS + 1)}
    even = parted(made(), made(everywhere))
    assert (even.kind, even.layer, even.hint) == ("start", None, True)
    assert "no block stands out" in even.sentence
    fault = {("spike", layer): 4.0 for layer in range(3, BLOCKS + 1)} | {("middle", 3): 4.0}
    found = parted(made(), made(everywhere | fault))
    assert (found.kind, found.layer, found.half) == ("start", 2, "mlp")
    assert "A hint: it grows most in the MLP of block 2" in found.sentence


def test_every_stack_is_walked() -> None:
    two = ("encoder", "decoder")
    first, second = made(stacks=two), made(stacks=two)
    changed = made(after(1), stacks=two)
    cells = {key: (changed if key.stack == "decoder" else second).cells[key] for key in second.cells}
    found = parted(first, replace(second, cells=cells))
    assert (found.stack, found.layer) == ("decoder", 1)
    assert found.sentence.startswith("Identical up to block 0 of the decoder; the MLP of block 1 of the decoder")


def test_nan_is_a_difference() -> None:
    found = parted(made(), made({("spike", 3): float("nan"), ("spike", 4): float("nan")}))
    assert (found.layer, found.half) == (2, "mlp")
    assert "not a number" in found.sentence


@pytest.mark.parametrize("change", [{"seed": 1}, {"corpus": {"hash": "x"}}, {"bos": {"begins": False}}])
def test_other_tokens_are_not_paired(change: dict[str, object]) -> None:
    first, other = made(bos={"begins": True}), made(bos={"begins": True})
    assert paired(first, other)
    told = {name: {**first.provenance[name], **v} if isinstance(v, dict) else v for name, v in change.items()}
    assert parting(first, replace(other, provenance={**other.provenance, **told})) is None


def test_other_fingerprints_are_not_paired() -> None:
    assert parting(with_trial(made()), with_trial(made(), fingerprint="g")) is None


@pytest.mark.parametrize(
    ("before", "after_", "words"),
    [
        (0.3, 24.0, "80x larger"),
        (0.3, 0.45, "1.5x larger"),
        (24.0, 0.3, "80x smaller"),
        (0.3, 0.31, "something else of nearly the same size"),
        (0.3, 0.0, "nothing"),
    ],
)
def test_sizes_in_words(before: float, after_: float, words: str) -> None:
    assert times(before, after_) == words


PLACES = st.tuples(st.sampled_from(("spike", "entropy", "middle", "sink_mass")), st.integers(0, BLOCKS - 1))
FACTORS = st.dictionaries(PLACES, st.floats(0.5, 2.0), max_size=5)


@settings(max_examples=25, deadline=None)
@given(FACTORS, st.none() | st.integers(0, 2))
def test_where_does_not_depend_on_the_order(factors: dict[tuple[str, int], float], head: int | None) -> None:
    one, two = made(), made(factors, head=head)
    there, back = parted(one, two), parted(two, one)
    places = [(each.kind, each.stack, each.layer, each.half, each.head) for each in (there, back)]
    assert places[0] == places[1]


@settings(max_examples=25, deadline=None)
@given(FACTORS)
def test_equal_surveys_have_no_change(factors: dict[tuple[str, int], float]) -> None:
    found = compare(with_trial(made(factors)), with_trial(made(factors)))
    assert found.parting is not None
    assert found.parting.kind == "same"
    assert found.changes == ()
    assert {pair.status for pair in found.findings} <= {"same"}
    assert not found.worse("note")


@settings(max_examples=20, deadline=None)
@given(st.integers(0, BLOCKS - 1), st.floats(1.5, 100.0))
def test_the_planted_block_is_found(block: int, factor: float) -> None:
    found = parted(with_trial(made()), with_trial(made(after(block, factor)), writes={(block, "mlp"): 0.3 * factor}))
    assert (found.kind, found.layer, found.half) == ("place", block, "mlp")
