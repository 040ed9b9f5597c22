"""The model that a measurement is about, from whatever the caller gave, in the precision that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.autocast import refuse_autocast
from attnscope.hf.loading.devices import dtype_named
from attnscope.hf.loading.experts import with_plain_experts
from attnscope.hf.loading.in_memory import refuse_quantised
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.material import loaded_model, precision_and_place
from attnscope.hf.loading.options import Loading
from attnscope.hf.loading.shapes import SHAPES, shaped
from attnscope.hf.seeing.uncompiled import note_on, uncompiled
from attnscope.trace.windows import Tokenizer

Given = str | Path | nn.Module | Loaded | Callable[[int], nn.Module | Loaded]


def loaded_for(model: Given, tokenizer: Tokenizer | None, loading: Loading) -> Loaded:
    """What `model` names (a shape, with random weights), the model itself in `dtype`, or what a function makes of the
    seed. The caller's own model stays as it is: where its precision is another, a copy is cast."""
    refuse_autocast()
    if isinstance(model, str) and model in SHAPES and not Path(model).exists():
        if not loading.random_init:
            raise RefusalError(f"'{model}' is a shape without weights: pass --random-init, or name a model.")
        return shaped(model, seed=loading.seed, dtype=loading.dtype, device=loading.device)
    precision = dtype_named(loading.dtype)
    if isinstance(model, str | Path):
        return loaded_model(model, tokenizer, loading)
    if isinstance(model, nn.Module | Loaded) and loading.random_init:
        raise RefusalError("A model in memory has its weights: give a function from seed to model instead.")
    if not isinstance(model, nn.Module | Loaded) and not callable(model):
        raise RefusalError(f"A {type(model).__name__} is no model: give a name, a folder, or a model in memory.")
    made = model if isinstance(model, nn.Module | Loaded) else model(loading.seed)
    compiled = made.model if isinstance(made, Loaded) else made
    inner = uncompiled(compiled)
    note = note_on(compiled, inner)
    if note:
        made = replace(made, model=inner) if isinstance(made, Loaded) else inner
    refuse_quantised(inner)  # before a cast makes other numbers of them
    if precision is not None and precision_and_place(inner)[0] != precision:
        inner = (deepcopy(inner) if isinstance(model, nn.Module | Loaded) else inner).to(precision)
        if precision == torch.float64:
            with_plain_experts(inner)
        made = replace(made, model=inner) if isinstance(made, Loaded) else inner
    loaded = loaded_model(made, tokenizer, loading)
    return replace(loaded, provenance={**loaded.provenance, **note})
