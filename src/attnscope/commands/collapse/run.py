"""`attnscope.collapse`: how the differences between tokens shrink, block after block.

Figure 2 of arXiv:2103.03404 for any model: attention alone, with MLPs, with skips, and the whole model. All four use
the same weights and keep the norms (`hf.editing.surgery` defines the cuts). The theorem's bounds and tighter ones are
computed too. Numbers are float64, because after two or three blocks the residual is below the precision of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Unpack

from torch import nn

from attnscope.commands.collapse.bound_tables import bounds_by_layer, end_to_end, skip_bounds_by_layer
from attnscope.commands.collapse.notes import noted, provenance_of
from attnscope.commands.collapse.record import Collapse, EndToEnd
from attnscope.commands.collapse.running import Bounded, Measured, bounded, curve_of, measured
from attnscope.commands.collapse.settings import CollapseOptions, CollapseSettings
from attnscope.core.errors import RefusalError, one_of
from attnscope.core.progress import Advance, silent
from attnscope.core.stamp import numbered_seeds, refuse_unusable_seed
from attnscope.core.words import ranges
from attnscope.data.batches import Batch, Batches
from attnscope.data.windows import Tokenizer
from attnscope.hf.anatomy.anatomy import Anatomy, Stack, anatomy
from attnscope.hf.anatomy.precision import coarse_modules, widened
from attnscope.hf.editing.surgery import CUTS, Cut
from attnscope.hf.intercepting.restoring import evaluating, keeping_its_modules, looking_at, without_gradients
from attnscope.hf.loading.in_memory import refuse_broken_weights
from attnscope.hf.loading.load import (
    Given,
    Loaded,
    Ready,
    Text,
    batches_for,
    load,
    precision_and_place,
    refuse_randomness,
    refusing_what_does_not_run,
    text_of,
    why_it_does_not_run,
)
from attnscope.hf.loading.memory import out_of_memory, refusing_when_memory_runs_out
from attnscope.hf.loading.options import Loading, Sampling, with_options
from attnscope.hf.loading.quiet import quiet
from attnscope.matrix.residual import YARDSTICKS

TOKENS = 128  # as in the paper
SAMPLES = 8  # a quarter of the paper's number, because in float64 and four variants one sequence takes seconds


@with_options(CollapseOptions)
def collapse(
    model: Given,
    corpus: Text | Ready | None = None,
    *,
    settings: CollapseSettings = CollapseSettings(),
    loading: Loading = Loading(dtype="float64"),
    sampling: Sampling = Sampling(samples=SAMPLES),
    tokenizer: Tokenizer | None = None,
    progress: Advance = silent,
    **kwargs: Unpack[CollapseOptions],
) -> Collapse:
    """Measure how the differences between tokens shrink, block after block.

    Parameters
    ----------
    model : str, Path, torch.nn.Module, Loaded or callable
        A model, a function from seed to model, or with `random_init` a shape: bert-base, albert-base or xlnet-base.
    corpus : str, Path, iterable of texts, or ready batches, optional
        What the model reads. Default: the embedded corpus.
    variants : str or sequence of str
        The cuts to measure: "san", "san+mlp", "san+skip" and "whole".
    norm : str
        "1,inf" (the paper's), "frobenius", "1" or "inf".
    seeds : int or sequence of int
        How many random weights are drawn, or their seeds. All read the same sequences. Trained weights have one seed.
    mlp_skip : bool
        False also cuts the skip past the MLP wherever the skip past attention is cut.
    bounds, bound_samples : bool, int
        Whether to compute bounds, and on how many sequences of the first batch of the first seed.
    stack : str, optional
        The stack to measure, if the model has several.
    settings : CollapseSettings
        All of the keywords above as one object.
    loading, sampling : Loading, Sampling
        How the model is loaded and which sequences are read.
    dtype, device, random_init, allow_pickle, trust_remote_code : see `Loading`
        Fields of `loading` as keywords. A model in memory is copied into `dtype`; "auto" takes it as it is.
    samples, max_tokens, batch_size, field, bos : see `Sampling`
        Fields of `sampling` as keywords. By default sequences have 128 tokens, or as many as the model has positions.
    tokenizer : Tokenizer, optional
        The tokenizer of a model in memory.
    progress : callable
        Called as `progress(stage, done, total)`.

    Returns
    -------
    Collapse
        The curve of each cut, with bounds.

    Raises
    ------
    RefusalError
        If the model cannot be loaded or cut, or an option is unknown.

    Examples
    --------
    >>> found = attnscope.collapse("pocket", samples=2, max_tokens=32)
    """
    chosen, norm = _variants(settings), settings.norm
    one_of(norm, YARDSTICKS, "norm")
    seeds = numbered_seeds(settings.seeds, "a model that is built and measured")
    drawn = loading.random_init or (callable(model) and not isinstance(model, nn.Module))
    _check_seeds(seeds, drawn)
    sampling = replace(sampling, seed=seeds[0])
    text = text_of(corpus, sampling)
    prepared: Batches | None = None
    runs: list[Measured] = []
    beside: Bounded | None = None
    for number, seed in enumerate(seeds):
        progress("loading", 0, 0)
        loaded = load(model, loading=replace(loading, seed=seed), tokenizer=tokenizer)
        if prepared is None:
            reader = loaded if sampling.max_tokens is not None else replace(loaded, positions=_room(loaded))
            prepared = batches_for(reader, text, sampling)
        refuse_broken_weights(loaded)
        reason = _why_not_in_float64(loaded, prepared) if loading.dtype == "float64" else None
        if reason is not None:
            loaded = load(model, loading=replace(loading, seed=seed, dtype="float32"), tokenizer=tokenizer)
            loaded = replace(loaded, provenance={**loaded.provenance, "float64": f"does not run ({reason})"})
        with looking_at(loaded.model), keeping_its_modules(loaded.model), evaluating(loaded.model):
            precision, place = precision_and_place(loaded.model)
            with refusing_what_does_not_run(loaded), without_gradients(), quiet():
                first = prepared.batches[0].to(place, precision)
                refuse_randomness(loaded, first.shortened(16).inputs)
                found = anatomy(loaded.model, first.inputs)
                rounding = coarse_modules(loaded.model, first.shortened(16).inputs)
                coarse = _coarse_when_widened(loaded, first)
                wide = rounding and coarse is not None
            own = _stack(found, settings.stack)
            done = number * len(chosen) * prepared.samples
            total = len(seeds) * len(chosen) * prepared.samples
            with without_gradients(), quiet(), widened() if wide else nullcontext():
                runs.append(
                    measured(
                        loaded,
                        found,
                        own,
                        prepared,
                        chosen,
                        norm,
                        (rounding, rounding if coarse is None else coarse),
                        _saying(progress, done, total),
                    )
                )
                if settings.bounds and number == 0:
                    progress("bounds", 0, 0)
                    with _fitting():
                        beside = bounded(loaded, found, own, prepared, chosen, settings.bound_samples)
    assert prepared is not None
    return _collapse(runs, beside, prepared, chosen, settings, seeds, drawn=drawn)


def _collapse(
    runs: list[Measured],
    beside: Bounded | None,
    prepared: Batches,
    chosen: dict[str, Cut],
    settings: CollapseSettings,
    seeds: Sequence[int],
    *,
    drawn: bool,
) -> Collapse:
    first = runs[0]
    curves = {name: curve_of(name, chosen[name], [run.values[name] for run in runs], first.floor) for name in chosen}
    ends: list[EndToEnd] = []
    order, pairs = (float("nan"), 0) if beside is None or beside.alone is None else beside.alone.order()
    if beside is not None and beside.alone is not None:
        ends += end_to_end(beside.alone, "san")
    if beside is not None and beside.with_mlp is not None:
        ends += end_to_end(beside.with_mlp, "san+mlp", beside.mlp, settings.mlp_skip)
    return Collapse(
        model=first.name if len(runs) == 1 else first.name.replace(f", seed {seeds[0]})", f", {len(runs)} seeds)"),
        class_name=first.class_name,
        stack=first.stack.name,
        norm_placement=", ".join(dict.fromkeys(block.writes.norm for block in first.stack.blocks)),
        layers=len(first.stack.blocks),
        heads=first.heads,
        tokens=first.longest,
        weights="random" if drawn else _weights(first.loading),
        norm=settings.norm,
        floor=first.floor,
        curves=curves,
        bounds=bounds_by_layer(beside.alone) if beside is not None and beside.alone is not None else (),
        skip_bounds=skip_bounds_by_layer(beside.with_skip)
        if beside is not None and beside.with_skip is not None
        else (),
        ends=tuple(ends),
        order=order,
        pairs=pairs,
        notes=(*prepared.notes, *noted(runs, beside, settings.norm)),
        provenance=provenance_of(runs, prepared, chosen, settings, seeds),
    )


def _variants(settings: CollapseSettings) -> dict[str, Cut]:
    variants = settings.variants
    names = [word.strip() for word in variants.split(",")] if isinstance(variants, str) else list(variants)
    for name in names:
        one_of(name, CUTS, "variants")
    if not names:
        raise RefusalError(f"No variant was chosen: choose from {', '.join(CUTS)}.")
    return {name: CUTS[name] if CUTS[name].skip else replace(CUTS[name], mlp_skip=settings.mlp_skip) for name in names}


def _weights(loading: Mapping[str, Any]) -> str:
    """Return "random", "trained", or "as given" for a model in memory."""
    stored = loading.get("weights")
    return "random" if stored == "random" else "as given" if stored == "memory" else "trained"


def _check_seeds(seeds: Sequence[int], drawn: bool) -> None:
    if not seeds:
        raise RefusalError("No seed was given: give at least one.")
    if len(seeds) > 1 and not drawn:
        raise RefusalError(
            "Weights that are not drawn are the same for every seed: give one seed, or pass `random_init=True`."
        )
    for seed in seeds:
        refuse_unusable_seed(seed)


def _room(loaded: Loaded) -> int:
    return TOKENS if loaded.positions is None else min(TOKENS, loaded.positions)


def _why_not_in_float64(loaded: Loaded, prepared: Batches) -> str | None:
    precision, place = precision_and_place(loaded.model)
    return why_it_does_not_run(loaded, prepared.batches[0].to(place, precision).shortened(16).inputs)


def _coarse_when_widened(loaded: Loaded, first: Batch) -> tuple[str, ...] | None:
    """Return the modules that round to float32 even when the model's casts are skipped; None if it fails then."""
    try:
        with widened():
            return coarse_modules(loaded.model, first.shortened(16).inputs)
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        return None


def _fitting() -> AbstractContextManager[None]:
    """Refuse bounds that do not fit into memory. Unlike the curves, they need whole patterns in float64."""
    return refusing_when_memory_runs_out(
        "The bounds do not fit into memory: skip them with `bounds=False`, or pass a smaller `max_tokens=`."
    )


def _stack(found: Anatomy, name: str | None) -> Stack:
    names = [stack.name for stack in found.stacks]
    if not names:
        raise RefusalError(f"{found.model_class} has no blocks that pass a stream on: choose another model.")
    chosen = found.stacks[0] if name is None else found.stack(name)
    if chosen is None:
        raise RefusalError(f"{found.model_class} has no stack '{name}': choose one of {', '.join(names)}.")
    if uncut := found.without_stream(chosen.name):
        raise RefusalError(
            f"Blocks {ranges(uncut)} of {found.model_class} change the shape of their stream, so their skips cannot be "
            "cut: choose another model or stack."
        )
    return chosen


def _saying(progress: Advance, done: int, total: int) -> Callable[[str, int], None]:
    def said(stage: str, more: int) -> None:
        nonlocal done
        done += more
        progress(stage, done, total)

    return said
