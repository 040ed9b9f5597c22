"""Notes and provenance of a collapse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from attnscope.commands.collapse.bounding import OF_SKIPS, SANDWICHED
from attnscope.commands.collapse.running import Bounded, Measured
from attnscope.commands.collapse.settings import CollapseSettings
from attnscope.core.stamp import stamped
from attnscope.core.words import count, ranges
from attnscope.data.batches import Batches
from attnscope.hf.editing.surgery import Cut
from attnscope.matrix.residual import LARGEST_PROGRAM


def noted(runs: Sequence[Measured], beside: Bounded | None, norm: str) -> tuple[str, ...]:
    """Return notes on precision, skipped sequences, and bounds that do not apply."""
    first = runs[0]
    notes = []
    if first.single:
        notes.append(
            f"{count(first.single, 'sequence')} of a single token skipped: without another token the residual is zero "
            "at every depth."
        )
    if first.coarse:
        notes.append(
            f"{', '.join(first.coarse)} of this model computes in float32 whatever the dtype: below {first.floor:.1g} "
            "the curves are rounding."
        )
    if first.widened:
        notes.append(
            f"{', '.join(first.widened)} of this model casts to float32 whatever the dtype: these casts were skipped, "
            "so all numbers are float64."
        )
    if "float64" in first.loading:
        notes.append(f"This model's own code {first.loading['float64']} in float64: it was measured in float32.")
    notes += _without_attention(first)
    if not first.coarse and first.precision != "float64":
        notes.append(f"Numbers are {first.precision}: below {first.floor:.1g} the curves are rounding.")
    for name in first.values:
        broken = sum(int((~np.isfinite(run.values[name]).all(1)).sum()) for run in runs)
        if broken:
            notes.append(
                f"{name}: {count(broken, 'sequence')} became NaN or infinite at some depth; later depths are ignored."
            )
    if first.others:
        notes.append(
            f"Only the {first.stack.name} was measured: choose another stack ({', '.join(first.others)}) with `stack=`."
        )
    if norm == "inf" and first.longest * first.stack.width > LARGEST_PROGRAM:
        notes.append("The linf residual is taken about the mean token, which is within a factor 2 of the best centre.")
    for seen, which in ((beside.alone, "attention only"), (beside.with_skip, "attention + skip")) if beside else ():
        reasons = () if seen is None else tuple(seen.reasons)
        if reasons:
            alone = which == "attention only"
            what = "The bounds from weights alone" if alone else "The bounds with a skip"
            relevant = [r for r in reasons if (r != SANDWICHED if alone else r in OF_SKIPS)]
            if relevant:
                notes.append(f"{what} do not apply to this model: {'; '.join(relevant)}.")
    if beside is not None and beside.with_mlp is not None and isinstance(beside.mlp, str):
        notes.append(f"The bound of the paper's corollary 3.2 does not apply to this model: {beside.mlp}.")
    return tuple(notes)


def _without_attention(first: Measured) -> Iterator[str]:
    """Yield a note on what the cuts mean in blocks without attention, for each kind of such blocks."""
    others = [block for block in first.stack.blocks if not block.attends]
    for kind in dict.fromkeys(block.kind for block in others):
        numbers = [block.layer for block in others if block.kind == kind]
        which = f"Block{'s' if len(numbers) > 1 else ''} {ranges(numbers)} of the model ({kind})"
        have, hand = ("have", "they pass") if len(numbers) > 1 else ("has", "it passes")
        if kind == "MLP":
            yield f"{which} {have} no attention and nothing in its place: without MLPs {hand} the stream on unchanged."
        else:
            yield (
                f"{which} {have} no softmax attention that can be observed: the part in its place is kept and cut like "
                "attention, so 'attention only' means that part alone, without its skip and without the MLP."
            )


def provenance_of(
    runs: Sequence[Measured],
    prepared: Batches,
    chosen: dict[str, Cut],
    settings: CollapseSettings,
    seeds: Sequence[int],
) -> dict[str, Any]:
    """Return everything needed to reproduce the numbers."""
    first = runs[0]
    model = {
        **{k: v for k, v in first.loading.items() if k not in ("model", "sha256")},
        "name": first.name,
        "hash": [run.sha256 for run in runs],
        "parameters": first.parameters,
    }
    corpus = {
        "name": prepared.name,
        "hash": prepared.sha256,
        "sequences": prepared.samples,
        "tokens": prepared.tokens,
    }
    return stamped(
        model,
        corpus=corpus,
        **({} if prepared.beginning is None else {"bos": prepared.beginning.to_json()}),
        variants=list(chosen),
        mlp_skip=settings.mlp_skip,
        norm=settings.norm,
        seeds=list(seeds),
        dtype=first.precision,
    )
