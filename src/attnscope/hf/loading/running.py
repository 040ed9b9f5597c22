"""Run a loaded model on a batch: options of its forward pass, and refusals where it does not run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.hf.intercepting.restoring import evaluating, looking_at, without_gradients
from attnscope.hf.intercepting.slots import every_tensor
from attnscope.hf.loading.loaded import Loaded
from attnscope.hf.loading.quiet import quiet


def forward_options(loaded: Loaded) -> dict[str, Any]:
    """Turn the cache off, and project only the last token to the vocabulary: neither is read."""
    wished = {"use_cache": False, "logits_to_keep": 1}
    return {name: value for name, value in wished.items() if name in loaded.accepts}


@contextmanager
def refusing_what_does_not_run(loaded: Loaded, which: str = "the first batch") -> Iterator[None]:
    """Turn the error of a model that fails on a batch into a refusal."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0][:200]
        raise RefusalError(
            f"{loaded.class_name} does not run on {which} ({type(error).__name__}: {reason}): check that the "
            "batch holds what its forward takes, within its vocabulary and its positions."
        ) from error


def why_it_does_not_run(loaded: Loaded, inputs: Mapping[str, Any]) -> str | None:
    """Return the model's error (some fail in float64, since their code mixes precisions), or None if it runs."""
    with refusing_what_does_not_run(loaded, "this input"):
        try:
            with looking_at(loaded.model), evaluating(loaded.model), without_gradients(), quiet():
                loaded.model(**inputs, **forward_options(loaded))
        except RuntimeError as error:
            return None if out_of_memory(error) else (str(error).strip().splitlines() or ["no reason given"])[0][:120]
    return None


def precision_and_place(model: nn.Module) -> tuple[torch.dtype, torch.device]:
    # Heads built by hand keep their weights as buffers, which no optimiser touches.
    weights = (w for w in itertools.chain(model.parameters(), model.buffers()) if w.is_floating_point())
    first = next(weights, None)
    if first is None:
        raise RefusalError(f"{type(model).__name__} has no parameters: there is nothing to measure.")
    here = itertools.chain((first,), weights)  # what is out of memory has no place of its own
    return first.dtype, next((weight.device for weight in here if not weight.is_meta), torch.device("cpu"))


def out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out; allocators other than CUDA's raise a plain RuntimeError."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(w in str(error).lower() for w in words)


def refuse_randomness(loaded: Loaded, inputs: Mapping[str, Any]) -> None:
    """Refuse a model whose output changes between runs, for instance by dropout in evaluation mode."""
    with evaluating(loaded.model), torch.random.fork_rng(devices=[]):
        answers = [list(every_tensor(loaded.model(**inputs, **forward_options(loaded)))) for _ in range(2)]
    pairs = [(a, b) for a, b in zip(*answers, strict=True) if a.is_floating_point() and a.numel()]
    # Sums on a GPU may be taken in another order each time: that is rounding, not chance.
    apart = [float((a - b).nan_to_num().abs().max()) for a, b in pairs]
    sizes = [1e3 * torch.finfo(a.dtype).eps * float(a.nan_to_num().abs().max()) for a, _ in pairs]
    if any(difference > size for difference, size in zip(apart, sizes, strict=True)):
        raise RefusalError(
            f"{loaded.class_name} gives another output each time it runs (largest difference {max(apart):.3g}), also "
            "in evaluation: turn its dropout or other chance off."
        )
