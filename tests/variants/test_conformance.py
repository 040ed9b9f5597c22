"""Requirements for every registered variant. A new file in `variants` is tested here automatically."""

import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import attnscope
import attnscope.variants
from attnscope.core.errors import RefusalError
from attnscope.core.registry import variants
from attnscope.core.variant import MASK, Variant
from attnscope.matrix.plain_attention import plain_attention
from attnscope.matrix.statistics import STATISTICS
from tests.variants.calls import DIM, MASKS, SIZE, TOKENS, Call, able, answered, attending, call_of, noise, started

TAKES: dict[str, set[tuple[str, ...]]] = {
    "pattern": {("query", "key", "value")},
    "logits": {("query", "key", "value")},
    "output": {("mixed", "stream"), ("value", "stream"), ("value", "first_value")},
    "block": {("write",), ("write", "stream"), ("normed",), ("stream",), ("streams",)},
    "weights": {("weights",)},
}
every_variant = pytest.mark.parametrize("one", variants().values(), ids=variants())
every_attention = pytest.mark.parametrize("one", attending().values(), ids=attending())
every_mask = pytest.mark.parametrize("mask", MASKS)


@every_variant
def test_the_card_explains_the_variant(one: Variant) -> None:
    card = one.card
    assert one.function.__module__ == f"attnscope.variants.{card.name}"
    assert re.fullmatch(r"arXiv:\d{4}\.\d{5}", card.citation)
    assert re.fullmatch(r"[A-Z][^\n]*[^.\s]\.", card.summary)
    assert not re.search(r"[.!?] [A-Z]", card.summary), "a summary is one sentence"
    assert card.title
    assert card.formula.isprintable()
    assert card.cost
    assert (card.keeps is None) != (card.changes is None), "a card says what start keeps the function, or why none does"
    assert card.takes in TAKES[card.kind]
    assert set(card.statistics) <= set(STATISTICS)
    assert one.pattern is not None or one.slow is not None or card.kind in ("output", "block", "weights")


@every_variant
def test_every_keyword_is_explained_and_the_start_gives_the_tensors(one: Variant) -> None:
    card, parameters = one.card, inspect.signature(one.function).parameters
    explained = {*card.parameters, *card.drawn, *card.settings}
    free = any(each.kind is each.VAR_KEYWORD for each in parameters.values())  # parameters named after other things
    keywords = {name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    of_start = {*card.settings} & {*inspect.signature(one.start).parameters} - keywords  # which shape its tensors have
    assert free or keywords - set(MASK) == explained - of_start
    begun = started(one, call_of(one).given)
    assert free or set(begun) <= {*card.parameters, *card.drawn}
    assert bool(begun) == bool(card.parameters or card.drawn)
    assert all(name in begun or parameters[name].default is None for name in card.parameters if not free)


@every_variant
def test_asking_twice_gives_the_same_bits_and_changes_no_input(one: Variant) -> None:
    call = call_of(one)
    before = [tensor.clone() for tensor in call.tensors()]
    first, second = answered(call), answered(call)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.equal(*pair) for pair in zip(before, call.tensors(), strict=True))


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", ["none", "causal and padding"])
def test_narrow_dtypes_agree_with_float64(one: Variant, dtype: torch.dtype, mask: str) -> None:
    """The error is measured in units of the change in float64 when every input is moved at random by half a unit in the
    last place of the narrow type, and must be that of a few roundings."""
    if not able(one, mask):
        return
    wide = call_of(one, mask)
    exact, found = answered(wide), answered(wide.of(dtype))
    unit = torch.finfo(dtype).eps / 2

    def shaken(draw: int) -> Call:
        return wide.each(lambda number, t: t * (1 + unit * noise(1000 + 50 * draw + number, *t.shape).sign()))

    moved = [answered(shaken(draw)) for draw in range(8)]
    for name, right in exact.items():
        assert found[name].dtype == dtype
        assert found[name].isfinite().all()
        change = max(float((other[name] - right).abs().max()) for other in moved)
        allowed = 4 * change + 4 * unit * float(right.abs().max())
        assert float((found[name].double() - right).abs().max()) <= allowed


@every_attention
@every_mask
def test_the_fast_form_is_the_slow_one(one: Variant, mask: str) -> None:
    call = call_of(one, mask)
    if able(one, mask):
        torch.testing.assert_close(call(), call.slow(), rtol=1e-11, atol=1e-11)
    else:
        with pytest.raises(RefusalError):
            call()


class Made(TorchDispatchMode):
    """Count the numbers in all floating tensors that are created, and note whether one is a whole attention map."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens, self.maps, self.numbers = tokens, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple) else (found,):
            if isinstance(one, Tensor) and one.is_floating_point():
                self.maps += min((0, 0, *one.shape)[-2:]) >= self.tokens
                self.numbers += one.numel()
        return found


@every_attention
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_memory_is_what_the_card_says(one: Variant, mask: str) -> None:
    """Variants whose card says linear time create twice as many numbers for twice as many tokens."""
    if not able(one, mask):
        return
    numbers = []
    for tokens in (128, 256):
        call = call_of(one, mask, tokens=tokens).of(torch.float32)
        with torch.no_grad(), Made(tokens) as made:
            call()
        assert (made.maps > 0) == (one.card.memory == "n^2")
        numbers.append(made.numbers)
    if one.card.cost in ("n", "n w"):
        assert numbers[1] <= 2.2 * numbers[0]


@every_attention
@every_mask
def test_rows_have_the_properties_on_the_card(one: Variant, mask: str) -> None:
    if one.pattern is None or not able(one, mask):
        return
    call = call_of(one, mask)
    rows = call.pattern()
    asked = (rows != 0).any(-1)
    if "padding" in mask:  # padded queries are ignored
        asked &= call.more["visible"][..., 0, :]
    total = rows.sum(-1)[asked]
    assert torch.allclose(total, torch.ones_like(total), atol=1e-12) == one.card.rows_sum_to_one
    assert bool((rows >= 0).all()) == one.card.nonnegative
    assert (rows.shape[-1] == TOKENS) == one.card.keys_are_tokens


@every_variant
def test_gradients_pass_gradcheck(one: Variant) -> None:
    call = call_of(one, size=replace(SIZE, heads=4, dim=4, width=6), tokens=6)
    tensors = [tensor.requires_grad_() for tensor in call.tensors()]

    def run(*_: Tensor) -> tuple[Tensor, ...]:
        return tuple(found for found in answered(call).values() if found.requires_grad)

    assert torch.autograd.gradcheck(run, tensors, fast_mode=True)


@every_variant
def test_the_start_keeps_the_function_or_the_card_says_why_not(one: Variant) -> None:
    for mask in MASKS:
        if not able(one, mask):
            continue
        call = call_of(one, mask, moved=False)
        found = answered(call)
        if one.card.kind in ("pattern", "logits"):
            before = {"": plain_attention(call.inputs)}
        elif one.card.kind == "weights":
            before = call.given["weights"]
        else:
            first: Tensor = next(iter(call.given.values()))
            before = {"": first[-1] if one.card.takes == ("streams",) else first}
        if one.card.name == "qk_clip":  # keeps only the heads that are below the threshold
            rows = slice(0, DIM), slice(3 * DIM, 4 * DIM)
            assert all(torch.equal(found[n][r], before[n][r]) for n in before for r in rows)
            continue
        same = all(torch.allclose(found[name], before[name], rtol=1e-12, atol=1e-12) for name in before)
        assert same == (one.card.keeps is not None)


def test_an_unknown_name_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(RefusalError, match="Did you mean 'gated_output'"):
        attnscope.variants("gated_outputs")
    assert attnscope.variants("local") is attnscope.variants()["local"]


def test_the_name_is_the_catalog_before_and_after_the_room_is_imported() -> None:
    twin = attnscope.__getattr__("variants")  # the meaning of the name while no file of the room is imported
    assert twin("local") is attnscope.variants("local")
    assert inspect.signature(twin).parameters.keys() == inspect.signature(attnscope.variants).parameters.keys()


def test_every_file_is_in_the_catalog_and_has_a_test_file() -> None:
    folder = Path(attnscope.variants.__path__[0])  # type: ignore[attr-defined]
    assert sorted(variants()) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    tested = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert set(variants()) <= tested
    assert {one.card.kind for one in variants().values()} == set(TAKES)
