"""Long texts are refused before the model runs on them, with the number of tokens that would fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnscope
from attnscope.commands.explain import run as explain_run
from attnscope.commands.explain import sizes as explain_sizes
from attnscope.commands.paths import reading as paths_reading
from attnscope.commands.paths import run as paths_run
from attnscope.commands.view import maps as view_maps
from attnscope.core.errors import RefusalError
from attnscope.core.registry import chosen_methods
from attnscope.hf.loading.load import Loaded, load

TOKENS = 200


@pytest.fixture
def pocket() -> Loaded:
    return load("pocket")


@pytest.fixture
def longest_run(pocket: Loaded) -> list[int]:
    """Collect the number of tokens of every run of the model."""
    lengths: list[int] = []
    pocket.model.register_forward_pre_hook(
        lambda _, __, given: lengths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    return lengths


def batch() -> dict[str, Any]:
    return {"input_ids": torch.arange(3, 3 + TOKENS)[None]}


def test_view_refuses_a_long_text_before_the_model_runs_on_it(
    pocket: Loaded, longest_run: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_maps, "LONG", TOKENS - 1)
    monkeypatch.setattr("attnscope.commands.view.run.VERIFIED_TOKENS", TOKENS - 1)
    with pytest.raises(RefusalError, match=r"6 blocks x 4 heads x 200 tokens.*shorten the text to about 128 tokens"):
        attnscope.view(pocket, batch(), max_mb=0.1)
    assert max(longest_run) < 10


def test_explain_refuses_a_long_text_before_the_model_runs_on_it(
    pocket: Loaded, longest_run: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain_sizes, "LONG", TOKENS - 1)
    monkeypatch.setattr(explain_sizes, "memory_left", lambda: 10**8)
    with pytest.raises(
        RefusalError, match=r"^An explanation of 200 tokens takes about 0\.1 GB, and 0\.1 GB"
    ) as refused:
        attnscope.explain(pocket, batch())
    assert max(longest_run) < 10
    assert "give a text of 137 tokens or fewer, or of 200 with `methods='relevance'`." in str(refused.value)
    assert attnscope.explain(pocket, batch(), methods="relevance").methods


def test_paths_refuses_a_long_text_before_the_model_runs_on_it(
    longest_run: list[int], pocket: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths_run, "LONG", TOKENS - 1)
    monkeypatch.setattr(paths_reading, "memory_left", lambda: 10**8)
    monkeypatch.setattr(paths_run, "load", lambda *_, **__: pocket)
    with pytest.raises(RefusalError, match=r"Paths of 200 tokens take about .* GB.*give a text of"):
        attnscope.paths("pocket", batch())
    assert max(longest_run) < 10


def test_a_text_of_ordinary_length_is_not_estimated(
    pocket: Loaded, longest_run: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain_sizes, "memory_left", lambda: pytest.fail("estimated"))
    found = attnscope.explain(pocket, batch(), methods="relevance")
    runs = len(longest_run)
    longest_run.clear()
    monkeypatch.setattr(explain_run, "refuse_long_text", lambda *_: None)
    assert attnscope.explain(pocket, batch(), methods="relevance").methods == found.methods
    assert len(longest_run) == runs


def test_progress_says_how_long_slow_methods_take() -> None:
    by_name = {method.card.name: method for method in chosen_methods(("all",))}
    assert explain_sizes.told(by_name["integrated_gradients"], 20, 0.1) == "integrated gradients"
    assert explain_sizes.told(by_name["integrated_gradients"], 8000, 20.0) == (
        "integrated gradients (at least 7 minutes)"
    )
    assert explain_sizes.told(by_name["occlusion"], 8000, 20.0) == "occlusion (at least 533 minutes)"
    assert explain_sizes.told(by_name["relevance"], 8000, 20.0) == "relevance"
