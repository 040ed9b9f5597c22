"""Notes beside the numbers of a collapse, and its provenance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from attnscope.commands.collapse.bounding import OF_SKIPS, SANDWICHED
from attnscope.commands.collapse.running import Bounded, Measured
from attnscope.core.stamp import Stamp
from attnscope.core.words import count, ranges
from attnscope.data.batches import Batches
from attnscope.hf.editing.surgery import Cut
from attnscope.matrix.residual import LARGEST_PROGRAM


def noted(runs: Sequence[Measured], beside: Bounded | None, norm: str) -> tuple[str, ...]:
    """Return the notes that a reader needs to trust the numbers."""
    first = runs[0]
    notes = []
    if first.single:
        notes.append(
            f"{count(first.single, 'sequence')} of a single token left out: with no other token to differ from, the "
            "residual is zero at every depth."
        )
    if first.coarse:
        notes.append(
            f"{', '.join(first.coarse)} of this model computes in float32 whatever the dtype: below {first.floor:.1g} "
            "the curves are rounding."
        )
    if first.widened:
        notes.append(
            f"{', '.join(first.widened)} of this model casts to float32 whatever the dtype: the casts were left out, "
            "so that numbers are float64 throughout."
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
                f"{name}: {count(broken, 'sequence')} became NaN or infinite on the way; the rest of it is left out."
            )
    if first.others:
        notes.append(
            f"Only the {first.stack.name} is measured here: choose another stack ({', '.join(first.others)}) by name."
        )
    if norm == "inf" and first.longest * first.stack.width > LARGEST_PROGRAM:
        notes.append("The linf residual is about the mean token: within a factor 2 of the best centre.")
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
    """Say what the cuts mean in blocks without attention."""
    others = [block for block in first.stack.blocks if not block.attends]
    for kind in dict.fromkeys(block.kind for block in others):
        numbers = [block.layer for block in others if block.kind == kind]
        which = f"Block{'s' if len(numbers) > 1 else ''} {ranges(numbers)} of the model ({kind})"
        have, hand = ("have", "they hand") if len(numbers) > 1 else ("has", "it hands")
        if kind == "MLP":
            yield f"{which} {have} no attention and nothing in its place: without MLPs {hand} the stream on unchanged."
        else:
            yield (
                f"{which} {have} no softmax attention that is seen: what stands in its place is kept and cut as "
                "attention is, so 'attention only' means that part alone, without its skip and without the MLP."
            )


def provenance_of(
    runs: Sequence[Measured],
    prepared: Batches,
    chosen: dict[str, Cut],
    *,
    norm: str,
    seeds: Sequence[int],
    mlp_skip: bool,
) -> dict[str, Any]:
    """Return everything needed to make these numbers again."""
    first = runs[0]
    return {
        "model": {
            **{k: v for k, v in first.loading.items() if k not in ("model", "sha256")},
            "name": first.name,
            "hash": [run.sha256 for run in runs],
            "parameters": first.parameters,
        },
        "corpus": {
            "name": prepared.name,
            "hash": prepared.sha256,
            "sequences": prepared.samples,
            "tokens": prepared.tokens,
        },
        **({} if prepared.beginning is None else {"bos": prepared.beginning.to_json()}),
        "variants": list(chosen),
        "mlp_skip": mlp_skip,
        "norm": norm,
        "seeds": list(seeds),
        "dtype": first.precision,
        **Stamp.now().to_json(),
    }
