"""Only one measurement of a model runs at a time, and other threads can run the model meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.hf.intercepting import restoring as exclusive
from attnscope.hf.loading.quiet import quiet
from attnscope.papers.models.nano import Config, Nano
from tests.specimens import byte_tokenizer, tiny_llama

TEXT = "the dog and the fox"
IDS = torch.arange(1, 13)[None]


def llama() -> tuple[nn.Module, Callable[[nn.Module], Tensor], dict[str, Any]]:
    """Return a model that is observed through the registry of transformers."""
    return tiny_llama(), lambda model: model(IDS, use_cache=False).logits, {"corpus": [{"input_ids": IDS}]}


def nano() -> tuple[nn.Module, Callable[[nn.Module], Tensor], dict[str, Any]]:
    """Return a model that is observed through torch functions, with a replaced forward on its attention modules."""
    model = Nano(Config(vocab_size=16, layers=3, heads=2, width=16)).eval()
    return model, lambda model: model(IDS), {"corpus": [{"input_ids": IDS}]}


MODELS = [llama, nano]


@pytest.mark.parametrize("made", MODELS)
def test_forward_in_another_thread_is_not_measured(made: Callable[[], Any]) -> None:
    model, forward, options = made()
    with torch.no_grad():
        expected = forward(model)
    scanning, answers = get_ident(), []

    def elsewhere() -> Tensor:
        with torch.no_grad():
            return forward(model)

    def in_the_middle(*ignored: object) -> None:
        if get_ident() == scanning:  # in every forward of the scan: its probes, its checks and its own
            answers.append(pool.submit(elsewhere).result(timeout=60))

    middle = next(module for name, module in model.named_modules() if name.endswith(".1"))
    plain = attnscope.scan(model, measures="entropy,stable_rank", **options)
    with ThreadPoolExecutor(1) as pool:
        handle = middle.register_forward_hook(in_the_middle)
        seen = attnscope.scan(model, measures="entropy,stable_rank", **options)
        handle.remove()
    assert len(answers) > 3
    assert all(torch.equal(answer, expected) for answer in answers)
    assert seen.cells == plain.cells


SECOND: dict[str, Callable[[Any], Any]] = {
    "scan": lambda model: attnscope.scan(model, [TEXT], tokenizer=byte_tokenizer(), samples=1, measures="entropy"),
    "scan of a part": lambda model: attnscope.scan(model.model, [TEXT], tokenizer=byte_tokenizer(), samples=1),
    "collapse": lambda model: attnscope.collapse(model, [TEXT], tokenizer=byte_tokenizer(), dtype="float32"),
    "paths": lambda model: attnscope.paths(model, TEXT, tokenizer=byte_tokenizer(), dtype="float32"),
}


def test_second_measurement_of_a_model_is_refused_and_the_first_continues() -> None:
    model = tiny_llama()
    plain = SECOND["scan"](model)
    said: list[BaseException | None] = []

    def meanwhile(stage: str, done: int, total: int, tokens: int) -> None:
        if stage == "scanning" and not said:
            said.extend(pool.submit(way, model).exception(timeout=60) for way in SECOND.values())

    with ThreadPoolExecutor(1) as pool:
        words = byte_tokenizer()
        seen = attnscope.scan(model, [TEXT], tokenizer=words, samples=1, measures="entropy", progress=meanwhile)
        assert all(isinstance(error, RefusalError) for error in said)
        assert all("is being measured in another thread" in str(error) for error in said)
        assert seen.cells == plain.cells
        assert pool.submit(SECOND["scan"], model).result(timeout=60).cells == plain.cells  # and now it may
    assert not exclusive._LOOKING


def test_two_models_measured_at_once_restore_verbosity() -> None:
    from transformers.utils import logging as notes

    before = notes.get_verbosity()
    first, second = quiet(), quiet()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert notes.get_verbosity() != before
    second.__exit__(None, None, None)
    assert notes.get_verbosity() == before
    models = [tiny_llama(seed) for seed in (0, 1)]
    alone = [SECOND["scan"](model) for model in models]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(SECOND["scan"], models))
    assert [one.cells for one in together] == [one.cells for one in alone]
    assert notes.get_verbosity() == before
