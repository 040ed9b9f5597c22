"""The eye of a watch: where attention is in a model, and one look at it.

A look is a forward pass of its own, after the step, of a few sequences of the batch that was trained on (or of a probe
batch, the same at every look): without gradients, in evaluation mode, so that dropout shows nothing that is not in the
weights, with torch.autocast as it was in training. The training forward is not touched: it keeps its fused, compiled or
checkpointed kernels, and costs nothing at the steps between looks.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor, nn

import attnscope
from attnscope.commands.scan.observer import Observer
from attnscope.commands.watch.catching import Inputs, Precision, sliced, untouched
from attnscope.commands.watch.look import RunHeader, RunStack, fingerprint
from attnscope.commands.watch.settings import Page, Settings
from attnscope.core.errors import RefusalError
from attnscope.core.measure import Measure
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.anatomy.example import cut_down
from attnscope.hf.anatomy.weights import projection_parameters, training_frames
from attnscope.hf.intercepting.restoring import keeping_its_modules
from attnscope.hf.intercepting.wrappers import uncompiled
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.hf.tapping.verify import verify

# The module that is looked at: what stands inside the wrappers of distributed and compiled training.
#
# DistributedDataParallel and torch.compile keep the very parameters that are trained, so the module inside is run for a
# look as it is: no gradient is exchanged, nothing is compiled. Where parameters are cut up over processes (FSDP), a
# forward of one process alone is none, and is refused.

_KEEP_PARAMETERS = ("DistributedDataParallel", "DataParallel")  # by name: importing them costs seconds


def inside(model: nn.Module) -> nn.Module:
    """`model` itself where nothing is wrapped around it."""
    if not isinstance(model, nn.Module):
        raise RefusalError(f"A {type(model).__name__} is no module of torch: give the model that is trained.")
    while type(model).__name__ in _KEEP_PARAMETERS or type(model).__name__ == "OptimizedModule":
        inner = model._modules.get("module") or model._modules.get("_orig_mod")
        assert inner is not None
        model = inner
    for module in model.modules():
        if type(module).__name__.startswith(("FullyShardedDataParallel", "FSDP")):
            raise RefusalError(
                f"{type(model).__name__} is sharded over processes (FSDP), so no process can run it alone for a look: "
                "watch it under DistributedDataParallel, or scan its checkpoints with attnscope timeline."
            )
    return uncompiled(model)


def compiled_in_place(model: nn.Module) -> bool:
    """Whether calls of the module itself are compiled (`model.compile()`), so that no hook of it runs as Python."""
    return getattr(model, "_compiled_call_impl", None) is not None


_WISHED = {"use_cache": False, "logits_to_keep": 1}  # nobody reads a cache, or more than the last token's logits


class Eye:
    """Made when the first batch is known. `rows` sequences of a batch are looked at; None: all of them."""

    def __init__(
        self, model: nn.Module, measures: tuple[Measure, ...], inputs: Inputs, rows: int | None, *, probed: bool
    ) -> None:
        self.model = model
        self.measures = measures
        self._rows = rows
        takes = inspect.signature(model.forward).parameters
        whole = ("logits_to_keep",) if "labels" in inputs else ()  # a loss is made of all logits
        self._options = {name: value for name, value in _WISHED.items() if name in takes and name not in whole}
        self._kind = next((p.device.type for p in model.parameters()), "cpu")
        with untouched(model), quiet():
            self.anatomy: Anatomy = anatomy(model, inputs)
            self._sequence_first = any(stack.sequence_first for stack in self.anatomy.stacks)
            with keeping_its_modules(model):
                self.verified = self._verified(inputs)
                if probed:  # a few tokens of it run; does all of it?
                    model(**{**inputs, **self._options})

    def _verified(self, inputs: Inputs) -> str:
        """The verifier's word on a few tokens: what is seen is what the model does, or nothing is watched."""
        small = cut_down(self.model, self.slice(inputs))
        found = verify(self.model, small, self.anatomy)
        if not found.passed:
            raise RefusalError(f"{type(self.model).__name__} cannot be watched honestly: {found.sentence}")
        return found.sentence

    @property
    def stacks(self) -> tuple[RunStack, ...]:
        return tuple(
            RunStack(
                stack.name,
                len(stack.blocks) + len(self.anatomy.without_stream(stack.name)),
                max((s.heads for s in self.anatomy.sites if s.stack == stack.name), default=0),
                all(s.causal for s in self.anatomy.sites if s.stack == stack.name and s.site == "self"),
            )
            for stack in self.anatomy.stacks
        )

    def slice(self, inputs: Mapping[str, Any]) -> Inputs:
        return sliced(inputs, self._rows, self._sequence_first)

    def reads(self, field: str) -> bool:
        return any(field in measure.reads for measure in self.measures)

    def copied_weights(self) -> dict[str, Tensor]:
        """The projections as they are now, for a comparison after the step."""
        wanted = projection_parameters(self.anatomy)
        return {name: self.model.get_parameter(name).detach().clone() for name in wanted}

    def look(self, page: Page, inputs: Mapping[str, Any], precision: Precision) -> None:
        """Run the model on its part of the batch, and enter what the measures say."""
        observer = Observer(self.measures, page, torch.float32)
        batch = self.slice(inputs)

        def receive(frame: Frame) -> None:
            with torch.autocast(self._kind, enabled=False):  # the model's precision is not that of statistics
                observer.receive(frame)

        with untouched(self.model):
            with tap(self.model, self.anatomy, receive), precision():
                self.model(**{**batch, **self._options})
            rows = next((len(t) for t in batch.values() if isinstance(t, Tensor) and t.ndim), 1)
            observer.finish(range(rows))
            observer.commit()

    def training(self, page: Page, before: Mapping[str, Tensor] | None, *, gradients: bool = True) -> bool:
        """Enter gradients (unless they were before the update) and updates as they are now; whether there was one."""
        observer = Observer(self.measures, page, torch.float32)
        seen = False
        with torch.no_grad():
            for frame in training_frames(self.model, self.anatomy, before):
                seen = seen or frame.gradient is not None
                observer.receive(frame if gradients else replace(frame, gradient=None))
        observer.finish(None)
        observer.commit()
        return seen


# The beginning of a watch: an eye for the first batch, and the header of the record.

# What a forward raises where a batch does not fit.
_UNFIT = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


def eye_for(
    model: nn.Module, measures: tuple[Measure, ...], inputs: Inputs, labels: Inputs, *, rows: int | None, probed: bool
) -> tuple[Eye, bool]:
    """Labels are left out of a look, which asks for no loss; a model that does not run without them has them, and
    whether it does comes with the eye. What does not run either way is refused for its first reason."""
    try:
        return Eye(model, measures, inputs, rows, probed=probed), False
    except (*_UNFIT, RefusalError) as error:
        reason = error
    if labels:
        try:
            return Eye(model, measures, {**inputs, **labels}, rows, probed=probed), True
        except (*_UNFIT, RefusalError):
            pass
    if isinstance(reason, RefusalError):
        raise reason
    words = (str(reason).strip().splitlines() or ["no reason given"])[0][:200]
    raise RefusalError(
        f"{type(model).__name__} does not run on {looked_at(probed)} ({type(reason).__name__}: {words}): give probe=, "
        "a batch that holds what its forward takes, within its vocabulary and its positions."
    ) from reason


def looked_at(probed: bool) -> str:
    return "a probe batch" if probed else "the batch that was trained on"


def header_of(
    model: nn.Module,
    eye: Eye,
    measures: tuple[Measure, ...],
    settings: Settings,
    limits: Mapping[str, Mapping[str, float]],
    *,
    probed: bool,
) -> RunHeader:
    config = getattr(model, "config", None)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    return RunHeader(
        attnscope=attnscope.__version__,
        model=settings.name or getattr(config, "_name_or_path", "") or type(model).__name__,
        fingerprint=fingerprint(type(model).__name__, shapes),
        stacks=eye.stacks,
        measures={measure.card.name: measure.card for measure in measures},
        settings=settings.to_json(limits, looked_at(probed)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
