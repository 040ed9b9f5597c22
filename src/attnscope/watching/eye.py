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
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.measure import Measure
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.anatomy.example import cut_down
from attnscope.hf.anatomy.training import projection_parameters, training_frames
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.seeing.intact import keeping_its_modules
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.hf.tapping.verify import verify
from attnscope.records.timeline.header import RunStack
from attnscope.scanning.observer import Observer
from attnscope.watching.catching import Inputs, Precision, sliced
from attnscope.watching.page import Page
from attnscope.watching.untouched import untouched

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
