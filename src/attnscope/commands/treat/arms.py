"""One arm of a treatment: the same held-out text read by the model as it is now, its losses and its survey."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.commands.compare.chance import ByText, Sequences
from attnscope.commands.scan.run import scan
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.treat.halves import Losing
from attnscope.commands.treat.record import Arm
from attnscope.commands.treat.train import Recipe, train
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, Stepwise
from attnscope.core.words import count
from attnscope.data.batches import Batch, Batches
from attnscope.hf.intercepting.restoring import evaluating, with_gradients, without_gradients
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.running import precision_and_place

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


# Training of one arm: the same batches in the same order, the same chance, the same recipe, whatever is being trained.
#
#     with put_back(model, parameters): curve, seconds = fine_tuned(...)
#
# What is trained is put back afterwards, so that the next arm begins where this one began.


@contextmanager
def put_back(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Inside, parameters may be trained; outside, also after an exception, they are what they were, to the bit, and so
    are buffers that training moves (running means) and modes."""
    kept = {name: one.detach().clone() for name, one in parameters.items()}
    buffers = [(one, one.detach().clone()) for one in model.buffers()]
    modes = [(module, module.training) for module in model.modules()]
    wanted = {name: one.requires_grad for name, one in parameters.items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, one in parameters.items():
                one.copy_(kept[name])
                one.requires_grad_(wanted[name])
                one.grad = None
            for buffer, was in buffers:
                buffer.copy_(was)
        for module, mode in modes:
            module.training = mode


def fine_tuned(
    losing: Losing,
    batches: Batches,
    parameters: Mapping[str, nn.Parameter],
    recipe: Recipe,
    *,
    seed: int,
    stage: str,
    progress: Advance,
    beside: Mapping[str, Tensor] | None = None,
    kept: Path | None = None,
    plan: Mapping[str, Any] | None = None,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Train in place; the loss of every step and its seconds, also of steps that a resumed run had taken before."""
    model = losing.loaded.model
    place = precision_and_place(model)[1]
    said, begun = [float("nan")], [time.monotonic()]
    seconds = torch.full((recipe.steps,), math.nan, dtype=torch.float64)  # kept with the weights
    stop = Stepwise(lambda: progress("stopping when this step is done; Ctrl-C again stops at once", 0, 0))
    others = [one for one in model.parameters() if one.requires_grad]

    def drawn(rng: torch.Generator) -> Any:
        return batch_of_step(batches, seed, _step(rng)).to(place)

    def loss(_: nn.Module, rng: torch.Generator) -> Tensor:
        begun[0] = time.monotonic()  # of a step alone: what a checkpoint takes is not in it
        torch.manual_seed(rng.initial_seed())  # of dropout: alike in every arm
        value = losing(drawn(rng)).mean()
        said[0] = float(value.detach())
        return value

    def advance(_: str, done: int, total: int) -> None:
        seconds[done - 1] = time.monotonic() - begun[0]
        progress(f"{stage} (loss {said[0]:.3f})", done, total)
        stop.check()

    def where(broken: nn.Module, rng: torch.Generator) -> str:
        return first_that_breaks(broken, losing, drawn(rng))

    for one in others:
        one.requires_grad_(False)
    for one in parameters.values():
        one.requires_grad_(True)
    try:
        with stop.waiting(), with_gradients(), torch.random.fork_rng(devices=[]):
            curve = train(
                model,
                loss,
                recipe,
                seed=seed,
                kept=kept,
                plan=plan,
                trained=parameters,
                beside={**(beside or {}), "seconds": seconds},
                where=where,
                advance=advance,
            )
    finally:
        model.eval()
        for one in parameters.values():
            one.requires_grad_(False)
        for one in others:
            one.requires_grad_(True)
    return curve, tuple(one for one in seconds.tolist() if math.isfinite(one))


def _step(rng: torch.Generator) -> int:
    """The number of the step, which `models.train` puts into the last 31 bits of its seed."""
    return rng.initial_seed() & ((1 << 31) - 1)
