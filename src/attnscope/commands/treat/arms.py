"""Train an arm of a treatment, and measure it on held-out text.

All arms train on the same batches in the same order, with the same random numbers and the same recipe. Parameters are
restored afterwards, so that every arm starts from the same weights:

    with restored(model, parameters): curve, seconds = fine_tuned(...)
"""

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
from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.run import scan
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.treat.halves import Halves, SequenceLoss
from attnscope.commands.treat.pruning_record import Pruning
from attnscope.commands.treat.record import Arm, Chosen, Training
from attnscope.commands.treat.train import Recipe, train
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, Stepwise
from attnscope.core.words import count
from attnscope.data.batches import Batch, Batches
from attnscope.hf.intercepting.restoring import evaluating, with_gradients, without_gradients
from attnscope.hf.loading.load import Loaded, precision_and_place
from attnscope.hf.loading.options import Sampling

FEWEST_TIMED = 10  # steps needed for quartiles of the time per step


@dataclass(frozen=True)
class MeasuredArm:
    """The losses and the survey of one arm."""

    arm: Arm
    survey: Survey
    by_text: ByText


@dataclass(frozen=True)
class Trial:
    """The inputs of a treatment: the untreated model as measured, its text, and the remedy to try."""

    loss: SequenceLoss
    text: Halves
    sampling: Sampling
    chosen: Chosen
    before: MeasuredArm
    thresholds: Thresholds
    progress: Advance
    save: Path | None = None  # folder for the treated model

    def measured(self, name: str, title: str = "", **training: Any) -> MeasuredArm:
        """Measure the model in its current state on held-out text."""
        return measured_arm(self.loss, self.text.held_out, name, self.progress, title=title, **training)


@dataclass(frozen=True)
class TrialResult:
    """The measured arms. `before` is only set if the untreated model was measured again on other sequences."""

    chosen: Chosen
    treated: MeasuredArm
    control: MeasuredArm | None = None
    training: Training | None = None
    start: float = math.nan
    pruning: Pruning | None = None
    notes: tuple[str, ...] = ()
    before: MeasuredArm | None = None


def sequence_losses(loss: SequenceLoss, batches: Batches) -> tuple[float, ...]:
    """Return the loss of every sequence, in the order of their numbers."""
    model = loss.loaded.model
    device = precision_and_place(model)[1]
    losses: dict[int, float] = {}
    with evaluating(model), without_gradients():
        for batch in batches:
            each = loss(batch.to(device))
            losses |= dict(zip(batch.samples, each.double().tolist(), strict=True))
    return tuple(losses[number] for number in sorted(losses))


def measured_arm(
    loss: SequenceLoss,
    held_out: Batches,
    name: str,
    progress: Advance,
    *,
    curve: tuple[float, ...] = (),
    seconds: tuple[float, ...] = (),
    title: str = "",
    **options: Any,
) -> MeasuredArm:
    """Measure the losses and the survey of the model in its current state.

    `curve` and `seconds` come from its training.
    """
    progress(f"held-out loss of {name}", 0, 0)
    losses = sequence_losses(loss, held_out)
    if not all(map(math.isfinite, losses)):
        raise RefusalError(
            f"{name[0].upper()}{name[1:]} has a loss on held-out text that is not finite: choose other settings."
        )

    def scanning(_: str, done: int, total: int, __: int | None = None) -> None:
        progress(f"scanning {name} ({done} of {count(total, 'sequence')})", 0, 0)

    loaded: Loaded = replace(loss.loaded, name=f"{loss.loaded.name}{title}")
    values = Sequences(held_out.documents or tuple(range(held_out.samples)))
    survey = scan(loaded, held_out, keep_text=False, each=values, progress=scanning, **options)
    timed = seconds[1:]  # the first step includes warm-up
    if len(timed) < FEWEST_TIMED:
        arm = Arm(losses, curve, median(timed) if timed else math.nan)
    else:
        low, middle, high = quantiles(timed, n=4)
        arm = Arm(losses, curve, middle, (low, high))
    return MeasuredArm(arm, survey, values.by_text(survey.cards))


def batch_of_step(batches: Batches, seed: int, step: int) -> Batch:
    """Return the batch of a step: all batches once in a random order, then all again in another order.

    It only depends on the seed and the step, so all arms read the same batches.
    """
    turn, index = divmod(step, len(batches.batches))
    order = torch.randperm(len(batches.batches), generator=torch.Generator().manual_seed((seed << 20) + turn))
    return batches.batches[int(order[index])]


def first_nonfinite_module(model: nn.Module, loss: SequenceLoss, batch: Batch) -> str:
    """Return the first module with an output that is not finite, as ` (first in model.layers.3)`, or ""."""
    broken: list[str] = []

    def hook(path: str) -> Any:
        def after(_: nn.Module, __: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, torch.Tensor) and first.is_floating_point() and not bool(first.isfinite().all()):
                broken.append(path)

        return after

    handles = [module.register_forward_hook(hook(path)) for path, module in model.named_modules() if path]
    try:
        with without_gradients():
            loss(batch)
    finally:
        for handle in handles:
            handle.remove()
    return f" (first in {broken[0]})" if broken else ""


@contextmanager
def restored(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Restore parameters, buffers (running means) and modes exactly on exit, also after an exception."""
    values = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    modes = [(module, module.training) for module in model.modules()]
    required = {name: parameter.requires_grad for name, parameter in parameters.items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(values[name])
                parameter.requires_grad_(required[name])
                parameter.grad = None
            for buffer, earlier in buffers:
                buffer.copy_(earlier)
        for module, mode in modes:
            module.training = mode


def fine_tuned(
    loss: SequenceLoss,
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
    """Train in place. Return the loss and the seconds of every step, including steps before a resumption."""
    model = loss.loaded.model
    device = precision_and_place(model)[1]
    last_loss, start = math.nan, time.monotonic()
    seconds = torch.full((recipe.steps,), math.nan, dtype=torch.float64)  # saved with the weights
    stop = Stepwise(lambda: progress("stopping when this step is done; Ctrl-C again stops at once", 0, 0))
    others = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def drawn(rng: torch.Generator) -> Batch:
        step = rng.initial_seed() & ((1 << 31) - 1)  # `train` stores the step in the last 31 bits of the seed
        return batch_of_step(batches, seed, step).to(device)

    def step_loss(_: nn.Module, rng: torch.Generator) -> Tensor:
        nonlocal last_loss, start
        start = time.monotonic()  # time the step without the checkpoint before it
        torch.manual_seed(rng.initial_seed())  # equal dropout in every arm
        value = loss(drawn(rng)).mean()
        last_loss = float(value.detach())
        return value

    def advance(_: str, done: int, total: int) -> None:
        seconds[done - 1] = time.monotonic() - start
        progress(f"{stage} (loss {last_loss:.3f})", done, total)
        stop.check()

    def where(broken: nn.Module, rng: torch.Generator) -> str:
        return first_nonfinite_module(broken, loss, drawn(rng))

    for parameter in others:
        parameter.requires_grad_(False)
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    try:
        with stop.waiting(), with_gradients(), torch.random.fork_rng(devices=[]):
            curve = train(
                model,
                step_loss,
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
        for parameter in parameters.values():
            parameter.requires_grad_(False)
        for parameter in others:
            parameter.requires_grad_(True)
    return curve, tuple(second for second in seconds.tolist() if math.isfinite(second))
