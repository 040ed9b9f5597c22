"""Widths of a model's heads: patterns, certified widths and sentences."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import attnscope
from attnscope.commands.head_widths.record import HeadWidth, HeadWidths
from attnscope.commands.head_widths.run import strongest
from attnscope.core.errors import RefusalError
from attnscope.hf.loading.options import Sampling
from tests.cli.test_compile import invoke, refused

module = import_module("attnscope.commands.head_widths.run")
Observed = tuple[str, tuple[int, ...], list[dict[Any, Any]]]


def test_the_strongest_keys_are_kept_and_what_they_hold_is_said() -> None:
    attention = torch.tensor([[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.5, 0.2, 0.3]])
    pattern, held = strongest(attention, 2, causal=True)
    assert pattern.causal
    assert pattern.dense() == pytest.approx(torch.tensor([[1, 0, 0], [0.4, 0.6, 0], [0.625, 0, 0.375]]).numpy())
    assert held == pytest.approx((1 + 1 + 0.8) / 3)


@pytest.fixture(scope="module")
def observed() -> Observed:
    """The patterns of pocket on one short text, read once for all tests."""
    return module._patterns("pocket", None, 1, Sampling(samples=1, max_tokens=8, batch_size=1))


@pytest.fixture
def some_heads(observed: Observed, monkeypatch: pytest.MonkeyPatch) -> int:
    name, tokens, texts = observed
    few = [dict(list(heads.items())[:3]) for heads in texts]
    monkeypatch.setattr(module, "_patterns", lambda *asked: (name, tokens, few))
    return len(few[0])


def test_every_head_of_the_model_is_seen(observed: Observed) -> None:
    name, tokens, texts = observed
    assert (name, tokens, len(texts)) == ("pocket", (8,), 1)
    assert {place[1:] for place in texts[0]} == {(layer, head) for layer in range(6) for head in range(4)}
    for one in texts[0].values():
        assert (one.pattern.n, one.pattern.k, one.pattern.causal, one.head_dim) == (8, 1, True, 32)
        assert 1 / 8 <= one.held <= 1


def test_every_head_has_a_certified_width_and_none_is_below_what_is_proved(some_heads: int) -> None:
    found = attnscope.head_widths("pocket", k=1, texts=1, max_tokens=8)
    assert len(found.heads) == len(found.measured) == some_heads
    assert all(1 <= one.proved <= (one.needs or 0) <= 2 for one in found.heads)  # one key a row: a circle is enough
    assert len(found.idle) == len(found.heads)
    assert not found.cramped


def test_time_that_is_up_leaves_heads_without_a_width(some_heads: int) -> None:
    found = attnscope.head_widths("pocket", k=1, texts=1, max_tokens=8, budget=0.0)
    assert len(found.heads) == some_heads
    assert not found.measured
    assert "No width was found" in found.sentences()[0]


def test_the_command_keeps_the_record_and_its_page(some_heads: int, tmp_path: Path) -> None:
    asked = ("capacity", "--model", "pocket", "-k", "1", "--max-tokens", "8", "--texts", "1")
    result = invoke(*asked, "--out", str(tmp_path / "out"), "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    read = attnscope.load(tmp_path / "out")
    assert isinstance(read, HeadWidths)
    assert json.loads(result.stdout)["heads"] == read.to_json()["heads"]
    assert "How wide must the heads of pocket be?" in (tmp_path / "out" / "head_widths.html").read_text()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--model", "pocket", "-n", "8"), "--max-tokens instead"),
        ((), "give -n and -k, or a model"),
        (("-n", "8", "-k", "1", "--corpus", "x"), "name the model with --model"),
    ],
)
def test_what_does_not_go_together_is_refused(asked: tuple[str, ...], said: str) -> None:
    refused("capacity", *asked, says=said)


def test_cramped_and_idle_follow_from_the_widest_text() -> None:
    def head(number: int, *widths: int | None) -> HeadWidth:
        return HeadWidth("model", 0, number, 32, widths, (1,) * len(widths), 0.5)

    heads = (head(0, 2, 4), head(1, 3, 32), head(2, 40, 3), head(3, 2, None), head(4, 5, 5))
    found = HeadWidths("m", 4, 2, (48, 48), "float32", 0.1, 0.01, heads, 1.0)
    assert [one.head for one in found.idle] == [0]
    assert [one.head for one in found.cramped] == [1, 2]
    assert [one.head for one in found.measured] == [0, 1, 2, 4]


def test_unusable_options_are_refused() -> None:
    with pytest.raises(RefusalError, match="`k=` cannot be 0"):
        attnscope.head_widths("pocket", k=0)
