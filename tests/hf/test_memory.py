"""Refusals when memory runs out, and the longest text that fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import attnscope
from attnscope.commands.explain import sizes as explain_sizes
from attnscope.commands.view import run as view_run
from attnscope.core.errors import RefusalError
from attnscope.core.registry import chosen_methods
from attnscope.hf.loading.load import load, refusing_what_does_not_run
from attnscope.hf.loading.memory import TextSizes, refusing_when_memory_runs_out
from attnscope.hf.loading.one_text import Reading

FULL = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"


@dataclass(frozen=True)
class Squares(TextSizes):
    @property
    def bytes(self) -> int:
        return self.tokens**2


@pytest.mark.parametrize("memory", [0, 1, 99, 100, 101, 399, 400, 10**6])
def test_the_longest_text_that_fits_is_that_of_a_search_one_by_one(memory: int) -> None:
    slow = max(tokens for tokens in range(21) if tokens**2 <= memory)
    assert Squares(20).tokens_that_fit(memory) == slow


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError(FULL), torch.OutOfMemoryError("CUDA out of memory")])
def test_an_error_for_want_of_memory_becomes_the_refusal(error: Exception) -> None:
    with pytest.raises(RefusalError, match=r"^Give less\.$"), refusing_when_memory_runs_out("Give less."):
        raise error


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="shapes"), refusing_when_memory_runs_out("Give less."):
        raise RuntimeError("shapes differ")


def test_a_model_that_runs_out_of_memory_is_not_said_to_have_a_wrong_batch() -> None:
    with pytest.raises(RefusalError, match="memory ran out, so give a shorter text"):  # noqa: SIM117
        with refusing_what_does_not_run(load("pocket")):
            raise RuntimeError(FULL)


def test_a_view_for_which_memory_runs_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(view_run, "run", full)
    with pytest.raises(RefusalError, match=r"A view of \d+ tokens does not fit into memory: give one of \d+ tokens"):
        attnscope.view("pocket", "The dog saw the dog")


@pytest.mark.parametrize(("error", "passes"), [(ValueError("odd"), False), (ZeroDivisionError(), True)])
def test_only_errors_of_a_model_are_left_to_the_run_on_the_whole_text(
    error: Exception, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mistakes of the program itself must not be taken for a model that does not run on a few tokens."""

    def failing(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(explain_sizes, "anatomy", failing)
    monkeypatch.setattr(explain_sizes, "LONG", 2)
    batch = {"input_ids": torch.arange(3, 13)[None]}
    read = Reading(batch=batch, ids=None, words=tuple("abcdefghij"))
    methods = tuple(chosen_methods(("relevance",)))
    if passes:
        with pytest.raises(type(error)):
            explain_sizes.refuse_long_text(load("pocket"), read, methods)
    else:
        explain_sizes.refuse_long_text(load("pocket"), read, methods)
