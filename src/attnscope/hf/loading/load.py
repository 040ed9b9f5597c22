"""load(model) -> Loaded: how every command gets its model.

load("pocket")   load("./my-model", dtype="bfloat16")   load("gpt2")   load("model.gguf")
load("config.json", random_init=True, seed=1)   load(my_model, tokenizer=my_tokenizer)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.core.folders import is_address
from attnscope.data import stream as stream_module
from attnscope.data.batches import Batches
from attnscope.data.corpus import Corpus, Document
from attnscope.data.read import Gallery, corpus_path, gallery, read, repeated
from attnscope.data.shards import Cut, InMemory
from attnscope.data.stream import Stream, stored_bytes
from attnscope.data.windows import Tokenizer
from attnscope.hf.intercepting.owners import every_tensor
from attnscope.hf.intercepting.restoring import evaluating, looking_at, without_gradients
from attnscope.hf.intercepting.wrappers import note_on, uncompiled
from attnscope.hf.loading.classes import dtype_named, refuse_autocast, with_plain_experts
from attnscope.hf.loading.feed import Streamed, feed, media_batches
from attnscope.hf.loading.from_files import from_files
from attnscope.hf.loading.in_memory import SHAPES, in_memory, refuse_quantised, shaped
from attnscope.hf.loading.loaded import Loaded
from attnscope.hf.loading.memory import out_of_memory
from attnscope.hf.loading.options import Loading, LoadOptions, Sampling, with_options
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.loading.targets import beginning_of_ready

ERRORS_OF_MODELS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What the code of a model raises on inputs that it cannot take. NotImplementedError is a RuntimeError."""


def forward_options(loaded: Loaded) -> dict[str, Any]:
    """Return options that save work: no key-value cache, and logits of the last token only."""
    wished = {"use_cache": False, "logits_to_keep": 1}
    return {name: value for name, value in wished.items() if name in loaded.accepts}


@contextmanager
def refusing_what_does_not_run(loaded: Loaded, which: str = "the first batch") -> Iterator[None]:
    """Turn the error of a model that fails on a batch into a refusal."""
    try:
        yield
    except ERRORS_OF_MODELS as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0][:200]
        remedy = "check that the batch holds the arguments of its forward, within its vocabulary and its positions"
        if out_of_memory(error):
            remedy = "memory ran out, so give a shorter text, a smaller batch or a smaller model"
        raise RefusalError(
            f"{loaded.class_name} does not run on {which} ({type(error).__name__}: {reason}): {remedy}."
        ) from error


def why_it_does_not_run(loaded: Loaded, inputs: Mapping[str, Any]) -> str | None:
    """Return the model's error on these inputs, or None if it runs. Some models mix precisions and fail in float64."""
    with refusing_what_does_not_run(loaded, "this input"):
        try:
            with looking_at(loaded.model), evaluating(loaded.model), without_gradients(), quiet():
                loaded.model(**inputs, **forward_options(loaded))
        except RuntimeError as error:
            return None if out_of_memory(error) else (str(error).strip().splitlines() or ["no reason given"])[0][:120]
    return None


def precision_and_place(model: nn.Module) -> tuple[torch.dtype, torch.device]:
    """Return the dtype and the device of the first floating-point weight."""
    # Compiled heads keep their weights as buffers, which no optimiser touches.
    weights = (w for w in itertools.chain(model.parameters(), model.buffers()) if w.is_floating_point())
    first = next(weights, None)
    if first is None:
        raise RefusalError(f"{type(model).__name__} has no parameters: there is nothing to measure.")
    every = itertools.chain((first,), weights)  # offloaded weights are on the meta device
    return first.dtype, next((weight.device for weight in every if not weight.is_meta), torch.device("cpu"))


def refuse_randomness(loaded: Loaded, inputs: Mapping[str, Any]) -> None:
    """Refuse a model whose output changes between runs, for instance by dropout in evaluation mode."""
    with evaluating(loaded.model), torch.random.fork_rng(devices=[]):
        answers = [list(every_tensor(loaded.model(**inputs, **forward_options(loaded)))) for _ in range(2)]
    pairs = [(a, b) for a, b in zip(*answers, strict=True) if a.is_floating_point() and a.numel()]
    # A GPU may add in another order each time: such differences are rounding, not randomness.
    apart = [float((a - b).nan_to_num().abs().max()) for a, b in pairs]
    sizes = [1e3 * torch.finfo(a.dtype).eps * float(a.nan_to_num().abs().max()) for a, _ in pairs]
    if any(difference > size for difference, size in zip(apart, sizes, strict=True)):
        raise RefusalError(
            f"The output of {loaded.class_name} changes from run to run in evaluation mode (by up to "
            f"{max(apart):.3g}): turn off its dropout or other randomness."
        )


# Turn a corpus, in whatever form the caller gave it, into batches that a loaded model can read.

_BLOCK = 1 << 16  # characters, and more for long windows
_BLOCK_PER_TOKEN = 64
Text = str | Path | Iterable[Document]
Ready = Batches | Mapping[str, Any] | Iterable[Mapping[str, Any]]


def text_of(corpus: Text | Ready | None, sampling: Sampling) -> Corpus | Gallery | Text | Ready | None:
    """Return the corpus that a path or `repeated` names, and anything else unchanged."""
    drawn = repeated(corpus) or gallery(corpus)
    if drawn is not None:
        return drawn
    return read(corpus, field=sampling.field) if isinstance(corpus, str | Path) else corpus


def text_or_stream(corpus: Text | Ready | None, sampling: Sampling) -> Corpus | Gallery | Stream | Text | Ready | None:
    """Return the same as `text_of`, but a large text as a stream, which keeps one block of it in memory."""
    if isinstance(corpus, str | Path) and str(corpus) != "-" and not (repeated(corpus) or gallery(corpus)):
        here = corpus if is_address(corpus) else corpus_path(str(corpus))
        if stored_bytes(here) > stream_module.LARGE:
            return stream_module.stream(
                here, sampling.field, max(_BLOCK, _BLOCK_PER_TOKEN * (sampling.max_tokens or 0))
            )
    return text_of(corpus, sampling)


def files_of(corpus: object) -> dict[str, int]:
    """Return how many files of a folder were read and skipped, or an empty dict for other corpora."""
    if not isinstance(corpus, Corpus | Stream) or not corpus.folder:
        return {}
    return {"files_read": len(corpus.files), "files_skipped": len(getattr(corpus, "skipped", ()))}


def batches_for(loaded: Loaded, corpus: Corpus | Gallery | Text | Ready | None, sampling: Sampling) -> Batches:
    """Return batches of a corpus. Ready batches are not changed, and text is cut as `sampling` says."""
    if isinstance(corpus, Gallery):
        return media_batches(loaded, corpus, sampling)
    if corpus is None or isinstance(corpus, Corpus):
        return feed(loaded, corpus, sampling)
    if isinstance(corpus, Batches | Mapping):
        ready = corpus if isinstance(corpus, Batches) else Batches.of([corpus])
        return _as_they_are(loaded, ready, sampling)
    if isinstance(corpus, str | Path):
        return batches_for(loaded, text_of(corpus, sampling), sampling)
    items: list[Any] = list(corpus)
    if items and isinstance(items[0], Mapping):
        return _as_they_are(loaded, Batches.of(items), sampling)
    return feed(loaded, read(items), sampling)


def cut_for(loaded: Loaded, corpus: Corpus | Gallery | Stream | Text | Ready | None, sampling: Sampling) -> Cut:
    """Return the batches of a corpus in shards."""
    if isinstance(corpus, Stream):
        return Streamed(loaded, corpus, sampling)
    return InMemory(batches_for(loaded, corpus, sampling))


def _as_they_are(loaded: Loaded, ready: Batches, sampling: Sampling) -> Batches:
    if ready.beginning is not None and sampling.bos == "auto":
        return ready
    return replace(ready, beginning=beginning_of_ready(loaded, (batch.inputs for batch in ready), sampling.bos))


__all__ = ["Given", "Loaded", "load"]

Given = str | Path | nn.Module | Loaded | Callable[[int], nn.Module | Loaded]


@with_options(LoadOptions)
def load(
    model: Given,
    *,
    loading: Loading = Loading(),
    tokenizer: Tokenizer | None = None,
    cast: bool = True,
    **kwargs: Unpack[LoadOptions],
) -> Loaded:
    """Return a model by name, a model in memory, or the model that a function makes from a seed.

    With random weights, a name may be one of `SHAPES`. A model in memory is never changed: if its precision is not
    `dtype`, a copy is cast, and `Loaded.notes` says so. `cast=False` keeps its precision.
    """
    refuse_autocast()
    if isinstance(model, str) and model in SHAPES and not Path(model).exists():
        if not loading.random_init:
            raise RefusalError(f"'{model}' is a shape without weights: pass `random_init=True`, or name a model.")
        return shaped(model, seed=loading.seed, dtype=loading.dtype, device=loading.device)
    if isinstance(model, str | Path):
        return from_files(str(model), loading)
    if isinstance(model, nn.Module | Loaded):
        if loading.random_init:
            raise RefusalError(
                "A model in memory has its weights: for random ones, give a function from seed to model."
            )
        made, may_change = model, False
    elif callable(model):
        made, may_change = model(loading.seed), True
    else:
        raise RefusalError(f"A {type(model).__name__} is not a model: give a name, a folder, or a model in memory.")
    compiled = made.model if isinstance(made, Loaded) else made
    inner = uncompiled(compiled)
    note = note_on(compiled, inner)
    refuse_quantised(inner)  # before a cast changes the numbers
    precision = dtype_named(loading.dtype) if cast else None
    if precision is not None and (given := precision_and_place(inner)[0]) != precision:
        note |= {"cast": f"{given} to {precision}".replace("torch.", "")}
        inner = (inner if may_change else deepcopy(inner)).to(precision)
        if precision == torch.float64:
            with_plain_experts(inner)
    loaded = replace(made, model=inner) if isinstance(made, Loaded) else in_memory(inner, tokenizer)
    return replace(loaded, provenance={**loaded.provenance, **note})
