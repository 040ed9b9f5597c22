"""load(model) -> Loaded: the one way in which commands get a model.

load("pocket")   load("./my-model", dtype="bfloat16")   load("gpt2")   load("model.gguf")
load("config.json", random_init=True, seed=1)   load(my_model, tokenizer=my_tokenizer)
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import torch
from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.data.windows import Tokenizer
from attnscope.hf.intercepting.wrappers import note_on, uncompiled
from attnscope.hf.loading.devices import dtype_named, refuse_autocast, with_plain_experts
from attnscope.hf.loading.from_files import from_files
from attnscope.hf.loading.in_memory import in_memory, refuse_quantised
from attnscope.hf.loading.loaded import Loaded
from attnscope.hf.loading.options import Loading, LoadOptions, with_options
from attnscope.hf.loading.running import precision_and_place
from attnscope.hf.loading.shapes import SHAPES, shaped

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
    """Return the model that `model` names, a model in memory, or what a function makes of the seed.

    A name may be one of the paper's shapes if weights are random. A model in memory is never changed: where its
    precision is not `dtype`, a copy is cast. `cast=False` measures it as it is.
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
            raise RefusalError("A model in memory has its weights: give a function from seed to model instead.")
        made, may_change = model, False
    elif callable(model):
        made, may_change = model(loading.seed), True
    else:
        raise RefusalError(f"A {type(model).__name__} is no model: give a name, a folder, or a model in memory.")
    compiled = made.model if isinstance(made, Loaded) else made
    inner = uncompiled(compiled)
    note = note_on(compiled, inner)
    refuse_quantised(inner)  # before a cast changes the numbers
    precision = dtype_named(loading.dtype) if cast else None
    if precision is not None and precision_and_place(inner)[0] != precision:
        inner = (inner if may_change else deepcopy(inner)).to(precision)
        if precision == torch.float64:
            with_plain_experts(inner)
    loaded = replace(made, model=inner) if isinstance(made, Loaded) else in_memory(inner, tokenizer)
    return replace(loaded, provenance={**loaded.provenance, **note})
