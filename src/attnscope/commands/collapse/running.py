"""Run one model's variants over batches: values for every sequence and depth, and bounds on a few sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from attnscope.commands.collapse.bounding import Bounding, known_weights
from attnscope.commands.collapse.record import Curve
from attnscope.core.errors import RefusalError
from attnscope.data.batches import Batch, Batches
from attnscope.data.frame import StreamFrame
from attnscope.hf.anatomy.anatomy import Anatomy, Stack
from attnscope.hf.anatomy.mlp_bound import MlpBound, mlp_bounds
from attnscope.hf.editing.surgery import CUTS, Cut, cut
from attnscope.hf.intercepting.restoring import evaluating
from attnscope.hf.loading.load import (
    Loaded,
    forward_options,
    precision_and_place,
    refusing_what_does_not_run,
)
from attnscope.hf.loading.memory import out_of_memory
from attnscope.hf.tapping.padding import attention_inputs, first_writes
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.matrix.collapse_bounds import collapse_order
from attnscope.matrix.residual import YARDSTICKS

Values = Float[np.ndarray, "sequence depth"]


@dataclass(frozen=True)
class Measured:
    """The results of one seed: the relative residual of every sequence at every depth, by variant (NaN: overflow)."""

    name: str
    class_name: str
    sha256: str
    parameters: int
    loading: dict[str, Any]
    precision: str
    stack: Stack
    others: tuple[str, ...]  # stacks that were not measured
    heads: int
    longest: int
    single: int  # sequences of one token, skipped
    floor: float
    coarse: tuple[str, ...]  # classes of modules that compute in float32 whatever the dtype
    widened: tuple[str, ...]  # classes whose casts to float32 were skipped
    values: dict[str, Values]


@dataclass(frozen=True)
class Bounded:
    """Observations of a few sequences in the variants that have bounds."""

    alone: Bounding | None
    with_mlp: Bounding | None
    with_skip: Bounding | None
    mlp: dict[int, MlpBound] | str


def measured(
    loaded: Loaded,
    found: Anatomy,
    stack: Stack,
    prepared: Batches,
    chosen: dict[str, Cut],
    norm: str,
    coarse: tuple[tuple[str, ...], tuple[str, ...]],
    say: Callable[[str, int], None],
) -> Measured:
    """Run every variant over every batch.

    `coarse` has the module classes that cast to float32, and those that still do when casts are skipped.
    """
    lengths: dict[int, int] = {}
    values = {}
    depths = len(stack.blocks) + stack.chained
    for name, variant in chosen.items():
        rows: dict[int, Sequence[float]] = {}
        with evaluating(loaded.model), cut(loaded.model, found, variant):
            for number, batch in enumerate(prepared):
                say(variant.title, 0)
                with refusing_what_does_not_run(loaded, f"batch {number + 1}"):
                    for sample, length, residuals in _run(loaded, found, stack, batch, YARDSTICKS[norm]):
                        lengths[sample], rows[sample] = length, residuals
                say(variant.title, len(batch))
        kept = [rows[sample] for sample in sorted(rows) if lengths[sample] > 1]
        if not kept:
            raise RefusalError(
                "Every sequence is a single token, whose residual is zero at every depth: give longer text."
            )
        values[name] = np.array(kept).reshape(len(kept), depths)
        _refuse_nothing(name, values[name], loaded)
    precision = precision_and_place(loaded.model)[0]
    return Measured(
        name=loaded.name,
        class_name=loaded.class_name,
        sha256=loaded.sha256,
        parameters=loaded.parameters,
        loading=loaded.provenance,
        precision=str(precision).removeprefix("torch."),
        stack=stack,
        others=tuple(other.name for other in found.stacks if other.name != stack.name),
        heads=max((site.heads for site in found.sites if site.stack == stack.name), default=0),
        longest=max(lengths.values()),
        single=sum(length < 2 for length in lengths.values()),
        floor=torch.finfo(torch.float32 if coarse[1] else precision).eps,
        coarse=coarse[1],
        widened=tuple(name for name in coarse[0] if name not in coarse[1]),
        values=values,
    )


def _run(
    loaded: Loaded,
    found: Anatomy,
    stack: Stack,
    batch: Batch,
    yardstick: Callable[..., torch.Tensor],
) -> list[tuple[int, int, Sequence[float]]]:
    """Return the number, length and residuals of each sequence in a batch. If memory runs out, run its halves."""
    seen: list[tuple[int, list[float]]] = []

    def receive(frame: Frame) -> None:
        if isinstance(frame, StreamFrame) and (frame.stack, frame.site) == (stack.name, "stream"):
            if not len(seen):
                rows = frame.token_mask.sum(1)
                apart = len(rows) // len(batch.samples)
                sizes.extend(rows[:: max(apart, 1)].tolist())
            finite = frame.stream.masked_fill(~frame.token_mask[..., None], 0.0).isfinite().all(-1).all(-1)
            values = yardstick(frame.stream.nan_to_num(0.0, 0.0, 0.0), frame.token_mask).double()
            values = values.masked_fill(~finite, torch.nan)
            if len(values) < len(batch.samples):
                raise RefusalError(
                    f"{loaded.class_name} packs the {len(batch.samples)} sequences of a batch into {len(values)} in "
                    f"its {stack.name}, and they cannot be separated: give batches of one sequence."
                )
            if len(values) > len(batch.samples):  # windows or channels of a sequence: take their mean
                values = values.reshape(len(batch.samples), -1).mean(1)
            seen.append((frame.layer, values.tolist()))

    sizes: list[int] = []
    precision, place = precision_and_place(loaded.model)
    ready = batch.to(place, precision)
    try:
        with tap(loaded.model, found, receive):
            loaded.model(**ready.inputs, **forward_options(loaded))
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return [row for half in batch.halves() for row in _run(loaded, found, stack, half, yardstick)]
    by_depth = [values for _, values in sorted(seen)]
    return [
        (sample, int(sizes[index]), [values[index] for values in by_depth])
        for index, sample in enumerate(batch.samples)
    ]


def _refuse_nothing(name: str, values: Values, loaded: Loaded) -> None:
    """Refuse if the stream of the whole model is not finite. A cut model may overflow; a note then says so."""
    if CUTS[name].skip and CUTS[name].mlp and not np.isfinite(values).all():
        depth = int(np.flatnonzero(~np.isfinite(values).all(0))[0])
        raise RefusalError(
            f"The stream of {loaded.name} holds NaN or infinite numbers from depth {depth} on: check its weights and "
            "its input, or pass a wider `dtype=`."
        )


def bounded(
    loaded: Loaded, found: Anatomy, stack: Stack, prepared: Batches, chosen: dict[str, Cut], samples: int
) -> Bounded:
    """Run the chosen variants on the first few sequences and observe what their bounds need."""
    batch = prepared.batches[0]
    while len(batch) > max(samples, 1) and not batch.undivided:
        batch, _ = batch.halves()
    precision, place = precision_and_place(loaded.model)
    ready = batch.to(place, precision)
    known = known_weights(loaded.model, found, stack)

    def look(name: str) -> Bounding | None:
        if name not in chosen:
            return None
        seen = Bounding(stack, known)
        with (
            evaluating(loaded.model),
            cut(loaded.model, found, chosen[name]),
            attention_inputs(loaded.model, found, seen.took),
            first_writes(loaded.model, stack, seen.wrote) if chosen[name].skip else nullcontext(),
            tap(loaded.model, found, seen.receive),
        ):
            loaded.model(**ready.inputs, **forward_options(loaded))
        seen.refuse_other_writes()
        return seen

    mlp: dict[int, MlpBound] | str = "it was not asked for"
    if "san+mlp" in chosen:
        mlp = mlp_bounds(loaded.model, found, stack, ready.shortened(16).inputs)
    return Bounded(look("san"), look("san+mlp"), look("san+skip"), mlp)


def curve_of(name: str, variant: Cut, seeds: Sequence[Values], floor: float) -> Curve:
    """Return the curve of a variant over the sequences of all seeds; NaN is ignored."""
    everything = np.concatenate(seeds)
    finite = np.isfinite(everything)
    columns = [column[ok] for column, ok in zip(everything.T, finite.T, strict=True)]
    mean = [_of(column, np.mean) for column in columns]
    order, pairs = collapse_order(mean, 8 * floor)
    return Curve(
        variant=name,
        title=variant.title,
        mean=tuple(mean),
        std=tuple(_of(column, np.std) for column in columns),
        low=tuple(_of(column, lambda c: np.quantile(c, 0.1)) for column in columns),
        high=tuple(_of(column, lambda c: np.quantile(c, 0.9)) for column in columns),
        n=tuple(int(column.size) for column in columns),
        by_seed=tuple(
            tuple(_of(c[np.isfinite(c)], np.mean) for c in values.T) for values in (seeds if len(seeds) > 1 else ())
        ),
        order=order,
        pairs=pairs,
    )


def _of(column: np.ndarray, function: Callable[[np.ndarray], Any]) -> float:
    return float(function(column)) if column.size else float("nan")
