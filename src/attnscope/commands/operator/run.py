"""operator(model, text) -> Operator: the whole model at one input as one affine map, T x + b (arXiv:2601.17958).

    op = attnscope.operator("pocket", "The dog chased its own tail")
    op.difference, op.offset_share, op.map("contribution").chart(), op.singular_values(5)

Patterns, deviations of norms and gates of activations are frozen at this input, as for `paths`. A model is refused if
the frozen network does not give its own numbers. `docs/operator.md` has the derivation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from attnscope.commands.operator.operator import About, Operator
from attnscope.commands.paths.reading import PathSizes, fitting, refuse_too_many_tokens, refusing_what_is_not_followed
from attnscope.core.errors import RefusalError, one_of
from attnscope.core.progress import Advance, silent
from attnscope.data.medium import medium, readable
from attnscope.data.windows import Tokenizer
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.editing.freeze import freeze
from attnscope.hf.intercepting.restoring import looking_at, with_gradients
from attnscope.hf.loading.in_memory import refuse_broken_weights
from attnscope.hf.loading.load import Loaded, load, precision_and_place, refusing_what_does_not_run, why_it_does_not_run
from attnscope.hf.loading.one_text import reading
from attnscope.hf.loading.options import Loading, Sampling, TextOptions, with_options
from attnscope.hf.loading.quiet import quiet
from attnscope.pathways.affine import Affine

PRECISIONS = ("float64", "float32")


@with_options(TextOptions)
@with_gradients()
def operator(
    model: str | Path | nn.Module | Loaded,
    text: str | tuple[str, str] | Mapping[str, Any],
    *,
    stack: str | None = None,
    loading: Loading = Loading(dtype="float64"),
    sampling: Sampling = Sampling(),
    tokenizer: Tokenizer | None = None,
    progress: Advance = silent,
    **kwargs: Unpack[TextOptions],
) -> Operator:
    """Return a model at one text as one affine map, T x + b.

    Parameters
    ----------
    model : str, Path, torch.nn.Module or Loaded
        The model. A model in memory is copied into `dtype` and stays as it is.
    text : str, tuple of two str, or mapping
        A text, a pair of source and target (encoder-decoders), or a ready batch of one sequence.
    stack : str, optional
        The stack of the map. Default: the last. What other stacks contribute is part of the offset.
    loading, sampling : Loading, Sampling
        How the model is loaded and how the text begins.
    dtype, device, random_init, seed, allow_pickle, trust_remote_code, bos : see `Loading` and `Sampling`
        Fields of both as keywords. `dtype` is "float64" or "float32".
    tokenizer : Tokenizer, optional
        The tokenizer of a model in memory.
    progress : callable
        Called as `progress(stage, done, total)`.

    Returns
    -------
    Operator
        The map. It holds the model and the inputs of each block, and runs the model's own code when it is applied.

    Raises
    ------
    RefusalError
        If the text is a picture or sound file, or the frozen model does not give the model's own numbers.

    Examples
    --------
    >>> op = attnscope.operator("pocket", "The dog chased its own tail")
    >>> largest = op.singular_values(5)
    """
    one_of(loading.dtype, PRECISIONS, "dtype")
    text = readable(text)
    if any(medium(side) is not None for side in (text if isinstance(text, tuple) else (text,))):
        raise RefusalError("An operator needs a text or a ready batch: give a picture as {'pixel_values': ...}.")
    progress("loading", 0, 0)
    loaded = load(model, loading=loading, tokenizer=tokenizer)
    refuse_broken_weights(loaded)
    read = reading(loaded, text, sampling.bos, what="Operators")
    narrow = why_it_does_not_run(loaded, read.batch) if loading.dtype == "float64" else None
    if narrow is not None:
        loaded = load(model, loading=replace(loading, dtype="float32"), tokenizer=tokenizer)
        read = reading(loaded, text, sampling.bos, what="Operators")
    with looking_at(loaded.model), quiet(), fitting(len(read.words)):
        progress("freezing", 0, 0)
        with refusing_what_does_not_run(loaded), torch.no_grad():
            found = anatomy(loaded.model, read.batch)
        if found.stacks and (stack is None or found.stack(stack) is not None):
            sizes = PathSizes.of(loaded, found, stack, tokens=len(read.words), suffixes=1, signs=0)
            refuse_too_many_tokens(sizes, precision_and_place(loaded.model)[1])
        with refusing_what_is_not_followed(loaded):
            network = freeze(loaded.model, read.batch, found, stack)
    notes: list[str] = []
    if narrow is not None:
        notes.append(f"This model does not run in float64 ({narrow}), so the operator is float32.")
    name = stack or found.stacks[-1].name
    others = [one.name for one in found.stacks if one.name != name]
    if others:
        elsewhere = ", ".join(others)
        notes.append(f"This is the operator of the {name}; contributions of {elsewhere} are in the offset.")
    about = About(
        model=loaded.name,
        class_name=loaded.class_name,
        stack=name,
        words=read.words,
        notes=(*notes, *read.notes),
        provenance=loaded.stamped(**read.bos_note()),
    )
    return Operator(Affine(network, 0, network.layers, True), about)
