"""Run a look: find attention in a model, repeat a forward pass on a few sequences, and measure it.

A look is a forward pass of its own after the step, on a few sequences of the training batch or on a fixed probe batch.
It runs without gradients and in evaluation mode, so that dropout adds no noise, with torch.autocast as in training. The
training forward is not touched: it keeps its fused, compiled or checkpointed kernels and costs nothing between looks.
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
from attnscope.commands.watch.extra_measures import CARDS, ExtraMeasures
from attnscope.commands.watch.forward_capture import AutocastState, Inputs, device_of, first_rows, without_side_effects
from attnscope.commands.watch.look import RunHeader, RunStack, fingerprint
from attnscope.commands.watch.look_totals import LookTotals
from attnscope.commands.watch.settings import WatchSettings
from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.anatomy.example import cut_down
from attnscope.hf.anatomy.weights import projection_parameters, training_frames
from attnscope.hf.intercepting.restoring import keeping_its_modules
from attnscope.hf.intercepting.wrappers import uncompiled
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.hf.tapping.verify import verify

_WRAPPERS = ("DistributedDataParallel", "DataParallel", "OptimizedModule")  # by name: importing is slow
_OPTIONS = {"use_cache": False, "logits_to_keep": 1}  # a look needs neither the cache nor the logits
# Errors that a forward raises on a batch that does not fit.
_UNFIT = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError, RefusalError)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside the wrappers of distributed and compiled training.

    These wrappers keep the very parameters that are trained, so a look runs the inner module: no gradient is exchanged
    and nothing is compiled. FSDP is refused, because one process alone cannot run a model that is sharded.
    """
    if not isinstance(model, nn.Module):
        raise RefusalError(f"A {type(model).__name__} is not a torch module: give the model that is trained.")
    while type(model).__name__ in _WRAPPERS:
        inner = model._modules.get("module") or model._modules.get("_orig_mod")
        assert inner is not None
        model = inner
    if any(type(m).__name__.startswith(("FullyShardedDataParallel", "FSDP")) for m in model.modules()):
        raise RefusalError(
            f"{type(model).__name__} is sharded over processes (FSDP), and a look must run in one process: watch it "
            "under DistributedDataParallel, or scan its checkpoints with attnscope timeline."
        )
    return uncompiled(model)


def compiled_in_place(model: nn.Module) -> bool:
    """Return whether `model.compile()` was called, so that none of its hooks run as Python."""
    return getattr(model, "_compiled_call_impl", None) is not None


class LookRunner:
    """Runs looks. Its constructor raises the error of the forward, or `RefusalError` if attention cannot be located."""

    def __init__(self, model: nn.Module, settings: WatchSettings, inputs: Inputs, *, probed: bool) -> None:
        self.model = model
        self.measures = settings.chosen_measures()
        self.needs_labels = "labels" in inputs
        self._settings, self._probed = settings, probed
        self._rows = None if probed else settings.rows
        parameters = inspect.signature(model.forward).parameters
        skipped = ("logits_to_keep",) if self.needs_labels else ()  # the loss needs all logits
        self._options = {n: value for n, value in _OPTIONS.items() if n in parameters and n not in skipped}
        with without_side_effects(model), quiet():
            self.anatomy: Anatomy = anatomy(model, inputs)
            self._sequence_first = any(stack.sequence_first for stack in self.anatomy.stacks)
            self._extra = ExtraMeasures(model, self.anatomy) if "default" in settings.measure_words() else None
            with keeping_its_modules(model):
                verdict = verify(model, cut_down(model, self.slice(inputs)), self.anatomy)
                if not verdict.passed:
                    raise RefusalError(f"{type(model).__name__} cannot be watched reliably: {verdict.sentence}")
                if probed:  # `cut_down` ran only a few of its tokens
                    model(**{**inputs, **self._options})

    @classmethod
    def start(
        cls, model: nn.Module, settings: WatchSettings, inputs: Inputs, labels: Inputs, *, probed: bool
    ) -> LookRunner:
        """Return a runner without labels, or with them if the model needs them.

        If neither works, the first error becomes a refusal.
        """
        try:
            return cls(model, settings, inputs, probed=probed)
        except _UNFIT as error:
            reason = error
        if labels:
            try:
                return cls(model, settings, {**inputs, **labels}, probed=probed)
            except _UNFIT:
                pass
        if isinstance(reason, RefusalError):
            raise reason
        words = (str(reason).strip().splitlines() or ["no reason given"])[0][:200]
        raise RefusalError(
            f"{type(model).__name__} does not run on {_batch_words(probed)} ({type(reason).__name__}: {words}): give "
            "probe=, a batch that holds what its forward takes, within its vocabulary and its positions."
        ) from reason

    def header(self, limits: Mapping[str, Mapping[str, float]]) -> RunHeader:
        name = type(self.model).__name__
        config = getattr(self.model, "config", None)
        sites = self.anatomy.sites
        stacks = tuple(
            RunStack(
                stack.name,
                len(stack.blocks) + len(self.anatomy.without_stream(stack.name)),
                max((s.heads for s in sites if s.stack == stack.name), default=0),
                all(s.causal for s in sites if s.stack == stack.name and s.site == "self"),
            )
            for stack in self.anatomy.stacks
        )
        return RunHeader(
            attnscope=attnscope.__version__,
            model=self._settings.name or getattr(config, "_name_or_path", "") or name,
            fingerprint=fingerprint(name, {n: tuple(p.shape) for n, p in self.model.named_parameters()}),
            stacks=stacks,
            measures={measure.card.name: measure.card for measure in self.measures}
            | ({} if self._extra is None else CARDS),
            settings=self._settings.to_json(limits, _batch_words(self._probed)),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def slice(self, inputs: Mapping[str, Any]) -> Inputs:
        return first_rows(inputs, self._rows, self._sequence_first)

    def reads(self, field: str) -> bool:
        return any(field in measure.reads for measure in self.measures)

    def copied_weights(self) -> dict[str, Tensor]:
        """Return copies of the projections, to be compared after the step."""
        return {n: self.model.get_parameter(n).detach().clone() for n in projection_parameters(self.anatomy)}

    def look(self, totals: LookTotals, inputs: Mapping[str, Any], autocast: AutocastState) -> None:
        """Run the model on the first rows of the batch and add the measures to `totals`."""
        observer = Observer(self.measures, totals, torch.float32)
        batch = self.slice(inputs)
        device_type = device_of(self.model).type

        def receive(frame: Frame) -> None:
            with torch.autocast(device_type, enabled=False):  # statistics keep their own precision
                observer.receive(frame)

        with without_side_effects(self.model):
            with tap(self.model, self.anatomy, receive), autocast():
                self.model(**{**batch, **self._options})
            rows = next((len(t) for t in batch.values() if isinstance(t, Tensor) and t.ndim), 1)
            observer.finish(range(rows))
            observer.commit()
        if self._extra is not None and not self._sequence_first:
            self._extra.future(totals, batch, self._options, autocast)

    def measure_training(
        self, totals: LookTotals, weights_before: Mapping[str, Tensor] | None, *, gradients: bool = True
    ) -> bool:
        """Measure updates, and gradients unless `before_update` did. Return whether a gradient exists."""
        observer = Observer(self.measures, totals, torch.float32)
        has_gradient = False
        with torch.no_grad():
            for frame in training_frames(self.model, self.anatomy, weights_before):
                has_gradient = has_gradient or frame.gradient is not None
                observer.receive(frame if gradients else replace(frame, gradient=None))
        observer.finish(None)
        observer.commit()
        if self._extra is not None and weights_before is not None:
            self._extra.weights(totals)
        return has_gradient


def _batch_words(probed: bool) -> str:
    return "a probe batch" if probed else "the training batch"
