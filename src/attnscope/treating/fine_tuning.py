"""Training of one arm: the same batches in the same order, the same chance, the same recipe, whatever is being trained.

    with put_back(model, parameters): curve, seconds = fine_tuned(...)

What is trained is put back afterwards, so that the next arm begins where this one began.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.interrupts import Stepwise
from attnscope.core.progress import Advance
from attnscope.hf.loading.material import precision_and_place
from attnscope.hf.seeing.gradients import with_gradients
from attnscope.models.train import Recipe, train
from attnscope.trace.batches import Batches
from attnscope.treating.arms import batch_of_step, first_that_breaks
from attnscope.treating.losing import Losing


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
