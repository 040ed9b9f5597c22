"""A causal model on texts that begin alike: suffixes after a shared prefix equal whole runs, or there is no prefix."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.tapping import suffixes
from attnscope.hf.tapping.capture import Captured, capture, output_with
from attnscope.hf.tapping.entrances import entrances, explaining
from attnscope.hf.tapping.suffixes import CALL, Prefix, in_calls, shared_prefix
from tests.hf.small_models import WIDTH, WORDS, small_model

TOKENS = 12


def run_of(model: Any, mask: bool) -> tuple[dict[str, Any], Any, Captured]:
    batch = {"input_ids": torch.randint(0, WORDS, (1, TOKENS), generator=torch.Generator().manual_seed(1))}
    if mask:
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    structure = anatomy(model, batch)
    found = entrances(model, batch, structure)
    return batch, found, capture(model, batch, structure, found, lambda output: output[:, -1].sum(-1))


def prefix_of(model: Any, mask: bool) -> tuple[Prefix | None, dict[str, Any], Any, torch.Tensor]:
    batch, found, captured = run_of(model, mask)
    with explaining(model):
        return shared_prefix(model, batch, found, captured), batch, found, captured.output.detach()


@pytest.mark.parametrize(("name", "mask"), list(product(["llama", "gpt2"], [False, True])))
def test_suffixes_equal_whole_runs_and_leave_the_model_as_it_was(name: str, mask: bool) -> None:
    model = small_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    prefix, batch, found, output = prefix_of(model, mask)
    assert prefix is not None
    own = model.get_input_embeddings()(batch["input_ids"]).detach()
    for begin in (TOKENS - 1, 7, 1, 7):  # the cache is cut each time, and is whole the next time
        vectors = own.expand(3, -1, -1).clone()
        vectors[1:, begin:] += torch.randn(2, TOKENS - begin, WIDTH, dtype=torch.float64)
        with explaining(model):
            suffix = prefix.output_with(begin, vectors[:, begin:])
        with torch.no_grad():
            whole = output_with(model, batch, found, {found[0].stack: vectors})
        torch.testing.assert_close(suffix, whole[:, begin:], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(suffix[:1], output[:, begin:], rtol=1e-9, atol=1e-12)
        assert not torch.equal(suffix[1], suffix[0])
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, output)
    assert model.config.use_cache is True


@pytest.mark.parametrize("name", ["sliding window", "bert", "bert with a language head"])
def test_other_models_have_no_shared_prefix(name: str) -> None:
    assert prefix_of(small_model(name), mask=True)[0] is None


@pytest.mark.parametrize("without", ["keys of the captured run", "keys in the right order"])
def test_wrong_keys_of_a_captured_run_are_noticed_and_the_own_cache_is_used(without: str) -> None:
    model = small_model("llama")
    batch, found, captured = run_of(model, mask=False)
    calls = () if without == "keys of the captured run" else captured.calls[::-1]
    with explaining(model):
        own = shared_prefix(model, batch, found, replace(captured, calls=calls))
        quick = shared_prefix(model, batch, found, captured)
    assert own is not None
    assert quick is not None
    for mine, other in zip(quick.cache.layers, own.cache.layers, strict=True):
        torch.testing.assert_close(mine.keys, other.keys, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(mine.values, other.values, rtol=1e-9, atol=1e-12)


def test_captured_keys_spare_a_run_of_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("llama")
    batch, found, captured = run_of(model, mask=False)
    read = []
    original = suffixes._continued

    def counted(model: Any, batch: Any, begin: int, end: int, cache: Any) -> Any:
        read.append(end - begin)
        return original(model, batch, begin, end, cache)

    monkeypatch.setattr(suffixes, "_continued", counted)
    with explaining(model):
        assert shared_prefix(model, batch, found, captured) is not None
    assert read == [TOKENS // 2]


def test_output_that_the_cache_does_not_reproduce_is_noticed() -> None:
    model = small_model("llama")
    batch, found, captured = run_of(model, mask=False)
    other = captured.output.detach().clone()
    other[0, -1, 3] += 1e-6
    with explaining(model):
        assert shared_prefix(model, batch, found, replace(captured, output=other)) is None
        assert shared_prefix(model, {**batch, "position_ids": torch.arange(TOKENS)[None]}, found, captured) is None


@given(st.lists(st.integers(0, 19), max_size=6), st.integers(1, 4))
def test_calls_are_the_cheapest_of_all_divisions(begins: list[int], most: int) -> None:
    calls = in_calls(begins, 20, most)
    assert sorted(row for call in calls for row in call) == list(range(len(begins)))
    assert all(begins[call[0]] == min(begins[row] for row in call) and len(call) <= most for call in calls)

    def cost(division: list[list[int]]) -> int:
        return sum(CALL + len(part) * (20 - min(part)) for part in division)

    ranked = sorted(begins)
    divisions = []
    for cuts in product([False, True], repeat=max(len(ranked) - 1, 0)):
        ends = [0, *(place for place, cut in enumerate(cuts, 1) if cut), len(ranked)]
        divisions.append([ranked[a:b] for a, b in pairwise(ends) if b > a])
    fitting = [cost(division) for division in divisions if all(len(part) <= most for part in division)]
    assert cost([[begins[row] for row in call] for call in calls]) == min(fitting)
