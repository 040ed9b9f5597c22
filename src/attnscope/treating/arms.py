"""One arm of a treatment: the same held-out text read by the model as it is now, its losses and its survey."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance
from attnscope.core.words import count
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.material import precision_and_place
from attnscope.hf.seeing.gradients import without_gradients
from attnscope.hf.seeing.intact import evaluating
from attnscope.records.by_text import ByText, Sequences
from attnscope.records.survey.survey import Survey
from attnscope.records.treatment import Arm
from attnscope.scanning.scan import scan
from attnscope.trace.batches import Batch, Batches
from attnscope.treating.losing import Losing

FEWEST_TIMED = 10  # steps: the time of fewer says more of the machine than of the model


@dataclass(frozen=True)
class Looked:
    """What an arm turned out to be."""

    arm: Arm
    survey: Survey
    by_text: ByText


def held_out_losses(losing: Losing, held_out: Batches) -> tuple[float, ...]:
    """The loss of every held-out sequence, in their order."""
    model = losing.loaded.model
    place = precision_and_place(model)[1]
    losses: dict[int, float] = {}
    with evaluating(model), without_gradients():
        for batch in held_out:
            each = losing(batch.to(place))
            losses |= dict(zip(batch.samples, each.double().tolist(), strict=True))
    return tuple(losses[number] for number in sorted(losses))


def looked_at(
    losing: Losing,
    held_out: Batches,
    name: str,
    progress: Advance,
    *,
    curve: tuple[float, ...] = (),
    seconds: tuple[float, ...] = (),
    title: str = "",
    **options: Any,
) -> Looked:
    """Losses and survey of the model as it is now; `curve` and `seconds` are of the training behind it."""
    progress(f"held-out loss of {name}", 0, 0)
    losses = held_out_losses(losing, held_out)
    if not all(map(math.isfinite, losses)):
        raise RefusalError(
            f"{name[0].upper()}{name[1:]} has a loss that is no number on held-out text: it is broken, and nothing is "
            "said of its findings; choose other settings."
        )

    def scanning(_: str, done: int, total: int, __: int | None = None) -> None:
        progress(f"scanning {name} ({done} of {count(total, 'sequence')})", 0, 0)

    loaded: Loaded = replace(losing.loaded, name=f"{losing.loaded.name}{title}")
    seen = Sequences(held_out.documents or tuple(range(held_out.samples)))
    survey = scan(loaded, held_out, keep_text=False, each=seen, progress=scanning, **options)
    return Looked(_arm(losses, curve, seconds), survey, seen.by_text(survey.cards))


def _arm(losses: tuple[float, ...], curve: tuple[float, ...], seconds: tuple[float, ...]) -> Arm:
    """The first step is none of those timed: it makes what later ones find made."""
    timed = seconds[1:]
    if len(timed) < FEWEST_TIMED:
        return Arm(losses, curve, median(timed) if timed else math.nan)
    low, middle, high = quantiles(timed, n=4)
    return Arm(losses, curve, middle, (low, high))


def batch_of_step(batches: Batches, seed: int, step: int) -> Batch:
    """Which batch a step trains on: every batch once in an order of its own, then again in another order. It depends on
    the seed and the step alone, so that all arms read the same."""
    turn, place = divmod(step, len(batches.batches))
    order = torch.randperm(len(batches.batches), generator=torch.Generator().manual_seed((seed << 20) + turn))
    return batches.batches[int(order[place])]


def first_that_breaks(model: nn.Module, losing: Losing, batch: Batch) -> str:
    """` (first in model.layers.3)`: the deepest module whose output is the first that is not a number."""
    seen: list[str] = []
    handles = []

    def look(path: str) -> Any:
        def after(_: nn.Module, __: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, torch.Tensor) and first.is_floating_point() and not bool(first.isfinite().all()):
                seen.append(path)

        return after

    for path, module in model.named_modules():
        if path:
            handles.append(module.register_forward_hook(look(path)))
    try:
        with without_gradients():
            losing(batch)
    finally:
        for handle in handles:
            handle.remove()
    return f" (first in {seen[0]})" if seen else ""
